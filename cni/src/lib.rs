//! Towpath's CNI plugin: reads the runtime's request, passes it to the node agent, and prints the
//! answer.
//!
//! The result has the form of the CNI specification's version that the network's configuration
//! names.
//!
//! All work happens in the agent. The plugin writes only the queue of DELs that arrived while no
//! agent answered, a note that the agent was ready, and an optional log. It starts for every pod,
//! so it is small: no runtime, no threads.

pub mod agent;
pub mod conflist;
pub mod delegate;
pub mod failure;
pub mod fault_points;
mod log;
pub mod request;
pub mod result;
pub mod spec;
pub mod state;
pub mod verbs;

use std::ffi::OsStr;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use serde_json::Value;

use failure::{Code, Failure};
use fault_points::Point;
use request::config::{Config, IPAM_PLUGIN, Invocation, Role};
use request::environment::{Command, OwnEnvironment, Variables as _};
use spec::SpecVersion;

/// Largest network configuration that is read, in bytes: GC names every container of the node.
const MAX_CONFIG: u64 = 16 * 1024 * 1024;

/// Runs the plugin: one command, named by the environment.
#[must_use]
pub fn main() -> ExitCode {
    let mut arguments = std::env::args_os();
    let role = role(arguments.next().as_deref());
    match arguments.next().as_deref().and_then(OsStr::to_str) {
        Some("--version") => {
            let version = env!("CARGO_PKG_VERSION");
            let versions = SpecVersion::ALL.map(SpecVersion::name).join(", ");
            println!("towpath-cni {version}, CNI specification {versions}");
            return ExitCode::SUCCESS;
        }
        #[cfg(feature = "fault-points")]
        Some("--list-fault-points") => {
            fault_points::points().for_each(|point| println!("{point}"));
            return ExitCode::SUCCESS;
        }
        _ => {}
    }
    // The version that is known by then decides the format of an error.
    let mut version = SpecVersion::NEWEST;
    let outcome = run(role, &mut version).and_then(|printed| match printed {
        Some(value) => print(&value),
        None => Ok(()),
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // The output may be closed; the exit code still reports the failure.
            print(&failure.to_json(version)).ok();
            ExitCode::FAILURE
        }
    }
}

/// Removes the note that the agent was ready in this boot, for STATUS to fail until it is again; the
/// file, if it was there.
///
/// # Errors
/// When it cannot be removed.
pub fn forget_readiness(state_dir: &Path) -> io::Result<Option<PathBuf>> {
    let note = state::note::Note::new(state_dir);
    Ok(note.remove()?.then(|| note.path()))
}

/// The name that the binary was started under decides.
fn role(name: Option<&OsStr>) -> Role {
    if name.and_then(|name| Path::new(name).file_name()) == Some(OsStr::new(IPAM_PLUGIN)) {
        Role::Ipam
    } else {
        Role::Interface
    }
}

fn run(role: Role, version: &mut SpecVersion) -> Result<Option<Value>, Failure> {
    let begun = Instant::now();
    let command = request::environment::command(&OwnEnvironment)?;
    let mut raw = Vec::new();
    io::stdin()
        .lock()
        .take(MAX_CONFIG)
        .read_to_end(&mut raw)
        .map_err(|error| {
            let message = "the network configuration cannot be read from standard input";
            Failure::new(Code::Io, message).with_details(error.to_string())
        })?;
    if command == Command::Version {
        return Ok(Some(spec::version_result(&raw)));
    }
    let config: Value = serde_json::from_slice(&raw).map_err(|error| {
        let message = "the network configuration is not valid JSON";
        Failure::new(Code::Decode, message).with_details(error.to_string())
    })?;
    *version = SpecVersion::of(&config)?;
    version.allows(command)?;
    let invocation = Invocation {
        role,
        command,
        version: *version,
    };
    let config = Config::parse(invocation, &config, &raw)?;
    let outcome = verbs::run(role, command, &config, &OwnEnvironment);
    if let Some(file) = &config.log_file {
        let of = |name| OwnEnvironment.get(name).unwrap_or_default();
        let (id, interface) = (of("CNI_CONTAINERID"), of("CNI_IFNAME"));
        let call = format!(
            "{command} {} {}/{}",
            config.name,
            id.display(),
            interface.display()
        );
        let text = match &outcome {
            Ok(_) => "done".to_owned(),
            Err(failure) => format!("failed with code {}: {failure}", failure.code.number()),
        };
        log::note(file, &call, &text, begun.elapsed());
    }
    outcome
}

/// Prints one JSON object.
fn print(value: &Value) -> Result<(), Failure> {
    fault_points::reach(Point::Print);
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{value}")
        .and_then(|()| stdout.flush())
        .map_err(|error| {
            let message = "the result cannot be written to standard output";
            Failure::new(Code::Io, message).with_details(error.to_string())
        })?;
    fault_points::reach(Point::Printed);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_decides_the_role() {
        for (name, expected) in [
            ("/opt/cni/bin/towpath-ipam", Role::Ipam),
            ("towpath-ipam", Role::Ipam),
            ("/opt/cni/bin/towpath-cni", Role::Interface),
            ("towpath-ipam-old", Role::Interface),
        ] {
            assert_eq!(role(Some(OsStr::new(name))), expected, "{name}");
        }
        assert_eq!(role(None), Role::Interface);
    }
}
