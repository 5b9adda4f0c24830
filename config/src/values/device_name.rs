//! The setting for the names of pods' host-side devices.

use api::ids::EndpointId;
use schemars::JsonSchema;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::refused;

const ID: &str = "id";
/// With 11 more digits a name has the kernel's 15 characters.
const LONGEST: usize = 4;
/// Beginnings of names that the kernel, systemd or other drivers give.
const TAKEN: [&str; 14] = [
    "br", "dumm", "en", "enp", "ens", "eth", "ib", "lo", "tap", "tun", "usb", "veth", "wlan", "wg",
];

/// Source of the names of pods' host-side devices.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema)]
#[schemars(with = "String")]
pub enum PodDeviceName {
    /// The endpoint's id.
    #[default]
    Id,
    /// The pod's name, after this prefix.
    Prefix(String),
}

impl PodDeviceName {
    /// The prefix, where names follow from the pod's.
    #[must_use]
    pub fn prefix(&self) -> Option<&str> {
        match self {
            Self::Id => None,
            Self::Prefix(prefix) => Some(prefix),
        }
    }
}

impl Serialize for PodDeviceName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.prefix().unwrap_or(ID))
    }
}

impl<'de> Deserialize<'de> for PodDeviceName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let is_plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
        let is_good = (1..=LONGEST).contains(&text.len()) && text.bytes().all(is_plain);
        if text == ID {
            Ok(Self::Id)
        } else if TAKEN.contains(&text.as_str()) || text == EndpointId::DEVICE_PREFIX {
            Err(D::Error::custom(format_args!(
                "{text:?} is refused: other devices have names that begin with it; allowed: id, or \
                 a prefix such as cali or eni"
            )))
        } else if is_good {
            Ok(Self::Prefix(text))
        } else {
            Err(refused(
                text,
                "id, or a prefix of 1 to 4 letters, digits, - and _",
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::ids::PodRef;

    fn read(text: &str) -> Result<PodDeviceName, serde_json::Error> {
        serde_json::from_value(text.into())
    }

    #[test]
    fn prefixes_are_checked() {
        assert_eq!(read("id").unwrap(), PodDeviceName::Id);
        for prefix in ["eni", "cali", "x", "a-_9"] {
            let name = read(prefix).unwrap();
            assert_eq!(name.prefix(), Some(prefix));
            assert_eq!(serde_json::to_value(&name).unwrap(), prefix);
        }
        for text in [
            "", "calic", "tow", "eth", "lo", "veth", "a b", "a/b", "a:b", "ä", "%d",
        ] {
            assert!(read(text).is_err(), "{text:?}");
        }
    }

    /// As Felix expects it in the log of aws/amazon-vpc-cni-k8s issue 1166.
    #[test]
    fn a_pods_device_has_the_name_that_engines_look_for() {
        let pod = PodRef {
            namespace: "default".into(),
            name: "my-nginx-86b7cfc89-6lr6v".into(),
            uid: None,
        };
        assert_eq!(pod.device("eni"), "eni8478779f379");
        assert_eq!(pod.device("cali").len(), 15);
    }
}
