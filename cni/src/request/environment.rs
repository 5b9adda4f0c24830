//! Environment variables that the runtime sets.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use crate::failure::{Code, Failure};
use crate::request::owner::Owner;

/// Command of the runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Attach a container.
    Add,
    /// Remove an attachment.
    Del,
    /// Check that an attachment is in the desired state.
    Check,
    /// Report if containers can be attached.
    Status,
    /// Remove attachments that the runtime does not know.
    Gc,
    /// List the supported versions of the specification.
    Version,
}

impl Command {
    /// All.
    pub const ALL: [Self; 6] = [
        Self::Add,
        Self::Del,
        Self::Check,
        Self::Status,
        Self::Gc,
        Self::Version,
    ];

    /// As the specification writes it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Add => "ADD",
            Self::Del => "DEL",
            Self::Check => "CHECK",
            Self::Status => "STATUS",
            Self::Gc => "GC",
            Self::Version => "VERSION",
        }
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Source of the variables.
pub trait Variables {
    /// The value of a variable.
    fn get(&self, name: &str) -> Option<OsString>;
}

/// The process's own environment.
#[derive(Clone, Copy, Debug)]
pub struct OwnEnvironment;

impl Variables for OwnEnvironment {
    fn get(&self, name: &str) -> Option<OsString> {
        std::env::var_os(name)
    }
}

/// A container's interface, as ADD, DEL and CHECK name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Owner of the attachment.
    pub owner: Owner,
    /// The network namespace.
    pub netns: Option<PathBuf>,
    /// `CNI_ARGS` as it came.
    pub args: String,
}

/// The command.
///
/// # Errors
/// When the variable is missing or names no command.
pub fn command(variables: &impl Variables) -> Result<Command, Failure> {
    let text = required(variables, "CNI_COMMAND")?;
    Command::ALL
        .into_iter()
        .find(|command| command.name() == text)
        .ok_or_else(|| {
            let names = Command::ALL.map(Command::name).join(", ");
            invalid(format!("CNI_COMMAND is {text:?}: {names} are allowed"))
        })
}

/// The owner that DEL names; `None` for one that ADD refuses, which has nothing.
///
/// # Errors
/// When a variable is missing. All that are missing are named.
pub fn deleted(variables: &impl Variables) -> Result<Option<Owner>, Failure> {
    check_given(Command::Del, variables)?;
    let id = required(variables, "CNI_CONTAINERID")?;
    Ok(Owner::new(id, required(variables, "CNI_IFNAME")?).ok())
}

/// The container of ADD and CHECK.
///
/// # Errors
/// When a variable that the command needs is missing or wrong. All that are missing are named.
pub fn target(command: Command, variables: &impl Variables) -> Result<Target, Failure> {
    check_given(command, variables)?;
    let owner = Owner::new(
        required(variables, "CNI_CONTAINERID")?,
        required(variables, "CNI_IFNAME")?,
    )?;
    let netns = optional(variables, "CNI_NETNS")?.map(PathBuf::from);
    if let Some(path) = &netns
        && !path.is_absolute()
    {
        let path = path.display();
        return Err(invalid(format!(
            "CNI_NETNS is \"{path}\": an absolute path is allowed"
        )));
    }
    let args = optional(variables, "CNI_ARGS")?.unwrap_or_default();
    Ok(Target { owner, netns, args })
}

/// Checks that every variable is there that a command needs.
fn check_given(command: Command, variables: &impl Variables) -> Result<(), Failure> {
    let mut names = vec!["CNI_CONTAINERID", "CNI_IFNAME"];
    // DEL may come when the namespace is gone (specification 1.1.0, section 2, "DEL").
    if command != Command::Del {
        names.push("CNI_NETNS");
    }
    let mut missing = Vec::new();
    for name in names {
        if optional(variables, name)?.is_none() {
            missing.push(name);
        }
    }
    if !missing.is_empty() {
        let message = format!(
            "required environment variables are missing: {}",
            missing.join(", ")
        );
        return Err(invalid(message));
    }
    Ok(())
}

/// The folders where plugins are looked for.
///
/// # Errors
/// When the variable is missing.
pub fn search_path(variables: &impl Variables) -> Result<Vec<PathBuf>, Failure> {
    let text = required(variables, "CNI_PATH")?;
    Ok(std::env::split_paths(&text).collect())
}

/// A variable that is set and not empty; an empty one is as good as none.
fn optional(variables: &impl Variables, name: &str) -> Result<Option<String>, Failure> {
    let Some(value) = variables.get(name).filter(|value| !value.is_empty()) else {
        return Ok(None);
    };
    value.into_string().map(Some).map_err(|value| {
        let value = value.display();
        invalid(format!("{name} is \"{value}\": UTF-8 is allowed"))
    })
}

fn required(variables: &impl Variables, name: &str) -> Result<String, Failure> {
    optional(variables, name)?.ok_or_else(|| {
        invalid(format!(
            "required environment variables are missing: {name}"
        ))
    })
}

fn invalid(message: String) -> Failure {
    Failure::new(Code::InvalidEnvironment, message)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    impl Variables for BTreeMap<&str, &str> {
        fn get(&self, name: &str) -> Option<OsString> {
            self.get(name).map(OsString::from)
        }
    }

    fn full() -> BTreeMap<&'static str, &'static str> {
        BTreeMap::from([
            ("CNI_CONTAINERID", "abc"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_NETNS", "/run/netns/abc"),
        ])
    }

    #[test]
    fn commands_are_known_by_their_names() {
        for known in Command::ALL {
            let variables = BTreeMap::from([("CNI_COMMAND", known.name())]);
            assert_eq!(command(&variables), Ok(known));
        }
        for variables in [
            BTreeMap::new(),
            BTreeMap::from([("CNI_COMMAND", "")]),
            BTreeMap::from([("CNI_COMMAND", "add")]),
        ] {
            let failure = command(&variables).unwrap_err();
            assert_eq!(failure.code.number(), 4);
            assert!(failure.message.contains("CNI_COMMAND"), "{failure}");
        }
    }

    #[test]
    fn every_missing_variable_is_named() {
        let failure = target(Command::Add, &BTreeMap::new()).unwrap_err();
        assert_eq!(failure.code.number(), 4);
        assert_eq!(
            failure.message,
            "required environment variables are missing: CNI_CONTAINERID, CNI_IFNAME, CNI_NETNS"
        );
        assert!(
            search_path(&full())
                .unwrap_err()
                .message
                .ends_with("CNI_PATH")
        );
    }

    #[test]
    fn only_del_may_come_without_a_namespace() {
        let mut variables = full();
        variables.remove("CNI_NETNS");
        assert!(deleted(&variables).unwrap().is_some());
        assert!(target(Command::Add, &variables).is_err());
        assert!(target(Command::Check, &variables).is_err());
        variables.insert("CNI_NETNS", "netns/abc");
        assert!(target(Command::Add, &variables).is_err());
        assert!(deleted(&variables).unwrap().is_some());
    }

    #[test]
    fn del_of_what_add_refuses_is_of_nobody() {
        let long = "x".repeat(256);
        for (id, interface) in [
            ("k8s://abc", "eth0"),
            ("a:b", "eth0"),
            (&long, "eth0"),
            ("-a", "eth0"),
            ("abc", "a/b"),
            ("abc", "0123456789abcdef"),
        ] {
            let mut variables = full();
            variables.extend([("CNI_CONTAINERID", id), ("CNI_IFNAME", interface)]);
            assert_eq!(deleted(&variables), Ok(None), "{id} {interface}");
            assert!(
                target(Command::Add, &variables).is_err(),
                "{id} {interface}"
            );
        }
        let failure = deleted(&BTreeMap::new()).unwrap_err();
        assert!(failure.message.ends_with("CNI_CONTAINERID, CNI_IFNAME"));
    }
}
