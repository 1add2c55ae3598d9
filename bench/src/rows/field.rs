//! Fields of rows: how each kind is read from JSON and written, and whether it is a setting, which
//! says what a row measures, or a measurement.

use super::spread::Spread;
use serde_json::{Map, Number, Value, json};

/// A row in JSON.
pub type Object = Map<String, Value>;
/// The name of a field that is wrong, and why.
pub type Bad = (String, String);

/// A field of a row, or several that belong together.
pub trait Field: Sized {
    /// Reads the field; a missing field has its default value.
    ///
    /// # Errors
    /// Fails if the field has a value that it may not have.
    fn read(object: &Object, name: &str) -> Result<Self, Bad>;

    /// Writes the field.
    fn write(&self, object: &mut Object, name: &str);

    /// Whether a row has the field.
    fn is_in(object: &Object, name: &str) -> bool {
        object.contains_key(name)
    }

    /// Adds the field to the settings that identify a row; does nothing for measurements.
    fn settings(&self, _name: &str, _out: &mut String) {}
}

/// A measurement, or a remark on one; null if there is none.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Measured<T>(pub Option<T>);

/// A measurement that may be negative.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Signed<T>(pub T);

/// A series: numbers that are not negative.
pub type Series = Measured<Vec<f64>>;
/// The times of a series, ascending; some count from an event in the middle, and so begin below
/// zero.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Times(pub Option<Vec<f64>>);

/// Defines settings. A setting of the wrong type counts as missing.
macro_rules! settings {
    ($($type:ty: |$value:ident| $read:expr;)*) => { $(
        impl Field for $type {
            fn read(object: &Object, name: &str) -> Result<Self, Bad> {
                Ok(object.get(name).and_then(|$value| $read).unwrap_or_default())
            }
            fn write(&self, object: &mut Object, name: &str) {
                object.insert(name.into(), json!(self));
            }
            fn settings(&self, name: &str, out: &mut String) {
                out.push_str(&format!("{name}={};", json!(self)));
            }
        }
    )* };
}

settings! {
    String: |value| value.as_str().map(ToOwned::to_owned);
    u64: |value| value.as_u64();
    bool: |value| value.as_bool();
}

/// A size, which some commands write as a whole number and others do not.
#[derive(Clone, PartialEq, Debug)]
pub struct Size(pub Number);

impl Size {
    /// The number.
    pub fn get(&self) -> f64 {
        self.0.as_f64().unwrap_or_default()
    }
}

impl From<f64> for Size {
    fn from(size: f64) -> Self {
        Self(Number::from_f64(size).unwrap_or_else(|| 0.into()))
    }
}

impl Field for Size {
    fn read(object: &Object, name: &str) -> Result<Self, Bad> {
        number(object, name, false).map(|size| Self::from(size.unwrap_or_default()))
    }
    fn write(&self, object: &mut Object, name: &str) {
        object.insert(name.into(), json!(self.0));
    }
    fn settings(&self, name: &str, out: &mut String) {
        out.push_str(&format!("{name}={};", self.get()));
    }
}

/// The field is not written if there is none.
impl<T: Field> Field for Option<T> {
    fn read(object: &Object, name: &str) -> Result<Self, Bad> {
        // Some rows say explicitly that there is none.
        let is_in = T::is_in(object, name) && object.get(name) != Some(&Value::Null);
        is_in.then(|| T::read(object, name)).transpose()
    }
    fn write(&self, object: &mut Object, name: &str) {
        self.iter().for_each(|field| field.write(object, name));
    }
    fn settings(&self, name: &str, out: &mut String) {
        self.iter().for_each(|field| field.settings(name, out));
    }
}

/// Reads a field that is a number, if it is there.
pub fn number(object: &Object, name: &str, is_signed: bool) -> Result<Option<f64>, Bad> {
    let bad = |why: String| Err((name.to_owned(), why));
    match object.get(name) {
        Some(Value::String(text)) => bad(format!("is {text:?} where a number belongs")),
        value => match value.and_then(Value::as_f64) {
            Some(number) if number < 0.0 && !is_signed => {
                bad(format!("is {number}, which cannot be negative"))
            }
            number => Ok(number),
        },
    }
}

macro_rules! measured {
    ($($type:ty: |$object:ident, $name:ident| $read:expr;)*) => { $(
        impl Field for $type {
            fn read($object: &Object, $name: &str) -> Result<Self, Bad> {
                Ok(Self($read))
            }
            fn write(&self, object: &mut Object, name: &str) {
                object.insert(name.into(), json!(self.0));
            }
        }
    )* };
}

measured! {
    Measured<f64>: |object, name| number(object, name, false)?;
    Measured<u64>: |object, name| number(object, name, false)?.map(whole);
    Measured<bool>: |object, name| object.get(name).and_then(Value::as_bool);
    Measured<String>: |object, name| object.get(name).and_then(Value::as_str).map(Into::into);
    Series: |object, name| series(object, name, |numbers| {
        let is_wrong = numbers.iter().any(|&number| number < 0.0);
        is_wrong.then_some("is a series with a negative number")
    })?;
    Times: |object, name| series(object, name, |times| {
        times.windows(2).any(|pair| pair[1] < pair[0]).then_some("goes back in time")
    })?;
}

impl Field for Signed<Measured<f64>> {
    fn read(object: &Object, name: &str) -> Result<Self, Bad> {
        number(object, name, true).map(|number| Self(Measured(number)))
    }
    fn write(&self, object: &mut Object, name: &str) {
        self.0.write(object, name);
    }
}

impl Field for Signed<Spread> {
    fn read(object: &Object, name: &str) -> Result<Self, Bad> {
        Spread::read_any(object, name, true).map(Self)
    }
    fn write(&self, object: &mut Object, name: &str) {
        self.0.write(object, name);
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "not negative")]
fn whole(number: f64) -> u64 {
    number as u64
}

fn series(
    object: &Object,
    name: &str,
    wrong: impl Fn(&[f64]) -> Option<&'static str>,
) -> Result<Option<Vec<f64>>, Bad> {
    let Some(values) = object.get(name).and_then(Value::as_array) else { return Ok(None) };
    let numbers: Vec<f64> = values.iter().filter_map(Value::as_f64).collect();
    wrong(&numbers).map_or(Ok(Some(numbers)), |why| Err((name.to_owned(), why.to_owned())))
}

impl<T: Copy> Measured<T> {
    /// The value.
    pub fn get(&self) -> Option<T> {
        self.0
    }
}

impl<T> From<T> for Measured<T> {
    fn from(value: T) -> Self {
        Self(Some(value))
    }
}
