//! The versions of the CNI specification, and what differs between them.

use serde_json::{Value, json};

use crate::failure::{Code, Failure};
use crate::request::environment::Command;

/// A version of the specification that the plugin speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SpecVersion {
    /// 0.3.1: ADD and DEL.
    V0_3_1,
    /// 0.4.0: adds CHECK.
    V0_4_0,
    /// 1.0.0: an address no longer names its family.
    V1_0_0,
    /// 1.1.0: STATUS and GC, the MTU of interfaces.
    V1_1_0,
}

impl SpecVersion {
    /// All, the oldest first.
    pub const ALL: [Self; 4] = [Self::V0_3_1, Self::V0_4_0, Self::V1_0_0, Self::V1_1_0];
    /// The newest.
    pub const NEWEST: Self = Self::V1_1_0;

    /// As the specification writes it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::V0_3_1 => "0.3.1",
            Self::V0_4_0 => "0.4.0",
            Self::V1_0_0 => "1.0.0",
            Self::V1_1_0 => "1.1.0",
        }
    }

    /// The version of a configuration.
    ///
    /// # Errors
    /// When it has none or one that the plugin does not speak.
    pub fn of(config: &Value) -> Result<Self, Failure> {
        let version = match config.get("cniVersion") {
            Some(Value::String(version)) => version,
            Some(other) => {
                let message = format!("cniVersion is {other}: a string is allowed");
                return Err(Failure::new(Code::Decode, message));
            }
            None => {
                // 0.1.0 is what the absence stands for (specification 0.2.0, "Version").
                let message = "the network configuration has no cniVersion";
                return Err(incompatible(message.to_owned()));
            }
        };
        Self::ALL
            .into_iter()
            .find(|known| known.name() == version)
            .ok_or_else(|| incompatible(format!("cniVersion is {version:?}")))
    }

    /// Fails where this version has no such command.
    ///
    /// # Errors
    /// For a command of a later version.
    pub fn allows(self, command: Command) -> Result<(), Failure> {
        let since = match command {
            Command::Add | Command::Del | Command::Version => Self::V0_3_1,
            Command::Check => Self::V0_4_0,
            Command::Status | Command::Gc => Self::V1_1_0,
        };
        if self >= since {
            return Ok(());
        }
        let message = format!(
            "cniVersion is {}: {command} is there from {} on",
            self.name(),
            since.name()
        );
        Err(Failure::new(Code::IncompatibleVersion, message))
    }

    /// True if an address names its family.
    #[must_use]
    pub fn names_family(self) -> bool {
        self < Self::V1_0_0
    }

    /// True if an interface has its MTU.
    #[must_use]
    pub fn has_mtu(self) -> bool {
        self >= Self::V1_1_0
    }
}

fn incompatible(message: String) -> Failure {
    Failure::new(Code::IncompatibleVersion, message)
        .with_details(format!("{} are allowed", names().join(", ")))
}

fn names() -> Vec<&'static str> {
    SpecVersion::ALL.map(SpecVersion::name).to_vec()
}

/// The answer to VERSION: `cniVersion` is that of the request.
#[must_use]
pub fn version_result(input: &[u8]) -> Value {
    let requested = serde_json::from_slice::<Value>(input).unwrap_or_default();
    let requested = requested.get("cniVersion").and_then(Value::as_str);
    json!({
        "cniVersion": requested.unwrap_or(SpecVersion::NEWEST.name()),
        "supportedVersions": names(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_known_by_their_names() {
        for version in SpecVersion::ALL {
            let config = json!({"cniVersion": version.name()});
            assert_eq!(SpecVersion::of(&config), Ok(version));
        }
    }

    #[test]
    fn other_versions_are_refused_with_code_1_and_what_is_allowed() {
        for config in [
            json!({}),
            json!({"cniVersion": "0.1.0"}),
            json!({"cniVersion": "0.2.0"}),
            json!({"cniVersion": "0.3.0"}),
            json!({"cniVersion": "1.2.0"}),
            json!({"cniVersion": ""}),
        ] {
            let failure = SpecVersion::of(&config).unwrap_err();
            assert_eq!(failure.code.number(), 1, "{config}");
            assert_eq!(
                failure.details, "0.3.1, 0.4.0, 1.0.0, 1.1.0 are allowed",
                "{config}"
            );
        }
        let failure = SpecVersion::of(&json!({"cniVersion": 1})).unwrap_err();
        assert_eq!(failure.code, Code::Decode);
    }

    #[test]
    fn commands_come_with_their_version() {
        use Command::{Add, Check, Del, Gc, Status};
        for (command, since) in [(Add, 0), (Del, 0), (Check, 1), (Status, 3), (Gc, 3)] {
            for (position, version) in SpecVersion::ALL.into_iter().enumerate() {
                let allowed = version.allows(command);
                assert_eq!(allowed.is_ok(), position >= since, "{command} {version:?}");
                if let Err(failure) = allowed {
                    assert_eq!(failure.code.number(), 1);
                }
            }
        }
    }

    #[test]
    fn the_version_that_was_asked_with_comes_back() {
        let all = ["0.3.1", "0.4.0", "1.0.0", "1.1.0"];
        for (input, version) in [
            (r#"{"cniVersion": "0.4.0"}"#, "0.4.0"),
            (r#"{"cniVersion": "9.9.9"}"#, "9.9.9"),
            ("", "1.1.0"),
            ("{}", "1.1.0"),
            ("[1", "1.1.0"),
        ] {
            let expected = json!({"cniVersion": version, "supportedVersions": all});
            assert_eq!(version_result(input.as_bytes()), expected, "{input}");
        }
    }
}
