//! Counts that are added up field by field.

/// Adds to each field of a value that of another of its type. What leaves one out is not compiled.
macro_rules! add_fields {
    ($sum:ident += $more:ident, $($field:ident),*) => {{
        let Self { $($field),* } = $more;
        $($sum.$field += $field;)*
    }};
}
pub(crate) use add_fields;
