//! The JSON form of a kind of leaves: its name.

use byteback_delta::leaves::LeafKind;
use serde::{Deserialize, Deserializer, Serializer, de};

#[expect(clippy::ref_option, reason = "serde's signature")]
pub(super) fn serialize<S: Serializer>(kind: &Option<LeafKind>, serializer: S) -> Result<S::Ok, S::Error> {
    match kind {
        Some(kind) => serializer.serialize_str(kind.name()),
        None => serializer.serialize_none(),
    }
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<LeafKind>, D::Error> {
    let name: Option<String> = Option::deserialize(deserializer)?;
    name.map(|name| {
        let unknown = || de::Error::custom(format!("unknown kind of proof sums '{name}': update the older side"));
        LeafKind::from_name(&name).ok_or_else(unknown)
    })
    .transpose()
}
