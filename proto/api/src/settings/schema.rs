//! Descriptions of the types of settings for OpenAPI.

use utoipa::openapi::schema::{
    AdditionalProperties, KnownFormat, ObjectBuilder, OneOfBuilder, Schema, SchemaFormat, Type,
};
use utoipa::openapi::{Ref, RefOr};

use super::{Setting, UNLIMITED, Unit, Value};

/// The schema of an object with a field per row.
///
/// `all`: the object must have every field that cannot be `null`.
pub(super) fn object(
    about: &str,
    all: bool,
    rows: Vec<(&'static Setting, Value)>,
) -> RefOr<Schema> {
    let mut object = ObjectBuilder::new()
        .schema_type(Type::Object)
        .description(Some(about.trim_start()))
        .additional_properties(Some(AdditionalProperties::<Schema>::FreeForm(false)));
    for (setting, default) in rows {
        object = object.property(setting.name, field(setting, &default, !all));
        if all && !setting.defaulted && setting.unit != Unit::Weights {
            object = object.required(setting.name);
        }
    }
    Schema::Object(object.build()).into()
}

/// `change`: `null` stands for the default.
fn field(setting: &Setting, default: &Value, change: bool) -> RefOr<Schema> {
    let nullable = setting.defaulted || change;
    let about = format!("{} ({})", setting.about(), setting.plain_bounds(default));
    let null = || ObjectBuilder::new().schema_type(Type::Null);
    let number = ObjectBuilder::new()
        .schema_type(Type::Integer)
        .format(Some(SchemaFormat::KnownFormat(KnownFormat::Int64)))
        .minimum(Some(*setting.range.start()))
        .maximum(Some(*setting.range.end()));
    let mut any = OneOfBuilder::new().description(Some(about.clone()));
    match (setting.unit, default) {
        (Unit::Policy, _) => {
            any = any.item(Ref::from_schema_name("PoolPolicy"));
            if change {
                any = any.item(null());
            }
        }
        (Unit::Weights, _) => any = any.item(null()).item(Ref::from_schema_name("Weights")),
        (_, Value::Limit(_)) => {
            any = any.item(number);
            if setting.unlimited {
                let word = ObjectBuilder::new().schema_type(Type::String);
                any = any.item(word.enum_values(Some([UNLIMITED])));
            }
            if nullable {
                any = any.item(null());
            }
        }
        _ if nullable => any = any.item(number).item(null()),
        _ => return Schema::Object(number.description(Some(about)).build()).into(),
    }
    Schema::OneOf(any.build()).into()
}
