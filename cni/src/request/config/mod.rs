//! The network configuration, as it comes by standard input.

mod fields;
mod previous;
mod requested;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::failure::{Code, Failure};
use crate::request::environment::Command;
use crate::request::owner::Owner;
use crate::spec::SpecVersion;
use fields::Fields;
pub use previous::PreviousResult;
use requested::Sections;
pub use requested::{Gateways, Requested};

/// The plugin's name: the `type` in a network configuration, and the binary's.
pub const PLUGIN: &str = "towpath-cni";
/// The IPAM plugin's name.
pub const IPAM_PLUGIN: &str = "towpath-ipam";

/// Default path of the agent's socket.
pub const SOCKET: &str = "/run/towpath/agent.sock";
/// Default folder of queued DELs.
pub const STATE_DIR: &str = "/run/towpath/cni";
/// Longer than the agent takes to answer that it is busy.
const TIMEOUT: u64 = 35;
const TIMEOUT_MAX: u64 = 600;

/// Role in which the plugin was called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It makes the interface.
    Interface,
    /// It gives addresses to another plugin, which makes the interface.
    Ipam,
}

/// A call of the plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invocation {
    /// The role of the plugin.
    pub role: Role,
    /// The command.
    pub command: Command,
    /// The version of the specification.
    pub version: SpecVersion,
}

/// Source of the addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ipam {
    /// The agent.
    Agent,
    /// The plugin of this name.
    Delegated(String),
}

impl Ipam {
    /// The source that the section `ipam` names. Called for IPAM alone, the plugin is the agent's.
    fn of(role: Role, section: &Fields<'_>) -> Result<Self, Failure> {
        let kind = section.text("type")?.filter(|kind| *kind != IPAM_PLUGIN);
        let Some(kind) = kind.filter(|_| role == Role::Interface) else {
            return Ok(Self::Agent);
        };
        if kind.contains('/') || kind.is_empty() {
            let allowed = "a plugin's name, without a folder, is allowed";
            return Err(section.wrong("type", allowed));
        }
        Ok(Self::Delegated(kind.to_owned()))
    }
}

/// A network configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Version of the specification that holds.
    pub version: SpecVersion,
    /// The network's name.
    pub name: String,
    /// The agent's socket.
    pub socket: PathBuf,
    /// Folder of queued DELs.
    pub state_dir: PathBuf,
    /// The time that the agent may take to answer.
    pub timeout: Duration,
    /// File to which each call is logged.
    pub log_file: Option<PathBuf>,
    /// Source of the addresses.
    pub ipam: Ipam,
    /// Request of an ADD.
    pub requested: Requested,
    /// Result of the chain so far (ADD), or of the whole chain (CHECK, DEL).
    pub previous: Option<PreviousResult>,
    /// The owners that the runtime knows, for GC.
    pub valid: Option<Vec<Owner>>,
    /// The whole as it came, for a delegated plugin.
    pub raw: Vec<u8>,
}

impl Config {
    /// Reads a configuration whose version is known already.
    ///
    /// # Errors
    /// When a field that matters is missing or wrong; the message names it. Fields that are not
    /// known are left alone: runtimes and other plugins of the chain have theirs.
    pub fn parse(invocation: Invocation, config: &Value, raw: &[u8]) -> Result<Self, Failure> {
        let Invocation {
            role,
            command,
            version,
        } = invocation;
        let Value::Object(object) = config else {
            let message = "the network configuration is not a JSON object";
            return Err(Failure::new(Code::Decode, message));
        };
        let all = Fields::new(object, "");
        let name = network_name(&all)?;
        let empty = Map::new();
        let ipam_fields = all.object("ipam")?.unwrap_or(Fields::new(&empty, "ipam."));
        let ipam = Ipam::of(role, &ipam_fields)?;
        // Our fields are beside `type`: in the IPAM section if the plugin is only called for IPAM.
        let (ours, more) = match (role, &ipam) {
            (Role::Ipam, _) => (&ipam_fields, None),
            (Role::Interface, Ipam::Agent) => (&all, Some(&ipam_fields)),
            (Role::Interface, Ipam::Delegated(_)) => (&all, None),
        };
        let path = |key, default: &str| match ours.absolute_path(key)? {
            Some(path) => Ok::<_, Failure>(path),
            None => Ok(PathBuf::from(default)),
        };
        let timeout = ours.seconds("timeout", 1..=TIMEOUT_MAX)?.unwrap_or(TIMEOUT);
        // No error in it may keep DEL from its work. STATUS reports if ADD would work.
        let requested = match command {
            Command::Add | Command::Status => {
                let sections = Sections {
                    all: &all,
                    ipam: &ipam_fields,
                    ours,
                    more,
                };
                Requested::of(role, sections)?
            }
            Command::Check | Command::Del | Command::Gc | Command::Version => Requested::default(),
        };
        Ok(Self {
            version,
            name,
            socket: path("socket", SOCKET)?,
            state_dir: path("state-dir", STATE_DIR)?,
            timeout: Duration::from_secs(timeout),
            log_file: ours.absolute_path("log-file")?,
            ipam,
            requested,
            previous: match command {
                Command::Add | Command::Check => PreviousResult::of(object)?,
                Command::Del | Command::Status | Command::Gc | Command::Version => None,
            },
            valid: valid(object)?,
            raw: raw.to_owned(),
        })
    }

    /// The whole configuration for a delegated plugin, with additional valid owners: a runtime
    /// knows only pods.
    #[must_use]
    pub fn with_valid(&self, more: &[Owner]) -> Vec<u8> {
        let Ok(Value::Object(mut config)) = serde_json::from_slice(&self.raw) else {
            return self.raw.clone();
        };
        if more.is_empty() {
            return self.raw.clone();
        }
        let more = more
            .iter()
            .map(|owner| json!({"containerID": owner.container_id, "ifname": owner.interface}));
        let more: Vec<Value> = more.collect();
        for key in VALID {
            match config.get_mut(key) {
                Some(Value::Array(list)) => list.extend(more.clone()),
                Some(null @ Value::Null) => *null = Value::Array(more.clone()),
                Some(_) | None => {}
            }
        }
        Value::Object(config).to_string().into_bytes()
    }
}

/// Fields with the owners that the runtime knows. libcni gives the list under both names, because
/// the specification first had the second one.
const VALID: [&str; 2] = ["cni.dev/valid-attachments", "cni.dev/attachments"];

/// The name (specification 1.1.0, section 1): it goes into files' names.
fn network_name(fields: &Fields<'_>) -> Result<String, Failure> {
    let name = fields.text("name")?.ok_or_else(|| {
        Failure::new(
            Code::InvalidConfig,
            "name is missing; expected the network's name",
        )
    })?;
    let mut letters = name.bytes();
    let is_good = letters.next().is_some_and(|b| b.is_ascii_alphanumeric())
        && letters.all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b));
    if is_good {
        return Ok(name.to_owned());
    }
    let allowed = "a letter or digit, then letters, digits, `_`, `.` and `-` are allowed";
    Err(fields.wrong("name", allowed))
}

/// The owners that the runtime knows.
fn valid(object: &Map<String, Value>) -> Result<Option<Vec<Owner>>, Failure> {
    let given = VALID
        .into_iter()
        .find_map(|key| Some((key, object.get(key)?)));
    let Some((key, value)) = given else {
        return Ok(None);
    };
    if value.is_null() {
        // Go writes an empty list like this if it was never set.
        return Ok(Some(Vec::new()));
    }
    let wrong = || {
        let message = format!("{key} is {value}");
        Failure::new(Code::InvalidConfig, message)
            .with_details("a list of objects with containerID and ifname is allowed")
    };
    let text = |item: &Value, key| item.get(key).and_then(Value::as_str).map(str::to_owned);
    let owners = value.as_array().ok_or_else(wrong)?.iter().map(|item| {
        let (Some(container_id), Some(interface)) =
            (text(item, "containerID"), text(item, "ifname"))
        else {
            return Err(wrong());
        };
        Ok(Owner {
            container_id,
            interface,
        })
    });
    owners.collect::<Result<_, _>>().map(Some)
}
