//! Adds structs of counts field by field.

/// Adds each field of `$more` to that field of `$sum`, which has the same type. A call that leaves
/// a field out does not compile.
macro_rules! add_fields {
    ($sum:ident += $more:ident, $($field:ident),*) => {{
        let Self { $($field),* } = $more;
        $($sum.$field += $field;)*
    }};
}
pub(crate) use add_fields;
