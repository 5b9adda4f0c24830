//! Actions of the commands.

mod interface;
mod ipam;
mod status;

use std::fs::File;
use std::path::Path;

use serde_json::Value;

use crate::agent::wire::{Pod, Wanted};
use crate::agent::{Agent, CallError};
use crate::delegate::Delegate;
use crate::failure::{Code, Failure};
use crate::fault_points::Exchange;
use crate::log;
use crate::request::arguments::Arguments;
use crate::request::config::{Config, Ipam, Role};
use crate::request::environment::{self, Command, Target, Variables};
use crate::request::owner::Owner;
use crate::state::lock::take_turn;
use crate::state::queue::Queue;

/// One call: what holds for every command.
struct Call<'a, V> {
    config: &'a Config,
    variables: &'a V,
    agent: Agent,
    queue: Queue,
}

/// Carries out a command other than VERSION; the result is what is to be printed.
///
/// # Errors
/// As the specification has it.
pub fn run(
    role: Role,
    command: Command,
    config: &Config,
    variables: &impl Variables,
) -> Result<Option<Value>, Failure> {
    let call = Call {
        config,
        variables,
        agent: Agent::new(config.socket.clone(), config.timeout),
        queue: Queue::new(&config.state_dir),
    };
    match command {
        Command::Version => Ok(None),
        Command::Status => status::status(&call).map(|()| None),
        Command::Gc => call.collect().map(|()| None),
        Command::Del => call.delete(role).map(|()| None),
        Command::Add => {
            let (target, arguments) = call.target(command)?;
            let netns = namespace(&target)?;
            call.queue.settle(&call.agent, Some(&target.owner))?;
            match role {
                Role::Interface => interface::add(&call, &target, netns, &arguments),
                Role::Ipam => ipam::add(&call, &target, &arguments),
            }
            .map(Some)
        }
        Command::Check => {
            let (target, _arguments) = call.target(command)?;
            let netns = namespace(&target)?;
            call.queue.settle(&call.agent, None)?;
            match role {
                Role::Interface => interface::check(&call, &target, netns),
                Role::Ipam => ipam::check(&call, &target),
            }
            .map(|()| None)
        }
    }
}

impl<V: Variables> Call<'_, V> {
    fn target(&self, command: Command) -> Result<(Target, Arguments), Failure> {
        let target = environment::target(command, self.variables)?;
        let arguments = Arguments::parse(&target.args)?;
        Ok((target, arguments))
    }

    /// The delegated plugin, where there is one.
    fn delegate(&self) -> Result<Option<Delegate>, Failure> {
        match &self.config.ipam {
            Ipam::Agent => Ok(None),
            Ipam::Delegated(name) => {
                let folders = environment::search_path(self.variables)?;
                Delegate::find(name, &folders).map(Some)
            }
        }
    }

    /// Serializes an owner's calls to a delegated plugin.
    fn take_turn(&self, owner: &Owner) -> Result<File, Failure> {
        take_turn(&self.config.state_dir, owner, self.config.timeout)
    }

    /// The requested addresses: `runtimeConfig` before `args` before `CNI_ARGS`, in the order of
    /// the reference plugin `static`, and these before pools.
    fn wanted(&self, arguments: &Arguments) -> Result<Wanted, Failure> {
        let requested = &self.config.requested;
        let addresses = if requested.addresses.is_empty() {
            &arguments.addresses
        } else {
            &requested.addresses
        };
        if !addresses.is_empty() {
            if arguments.pool.is_some() {
                let both = "TOWPATH_POOL cannot be given with explicit addresses: they have a pool";
                return Err(Failure::new(Code::InvalidEnvironment, both));
            }
            return Ok(Wanted {
                addresses: addresses.clone(),
                ..Wanted::default()
            });
        }
        let mut pools = requested.pools.clone();
        if let Some(pool) = &arguments.pool {
            let families = match requested.families.as_slice() {
                [] => &crate::agent::wire::Family::ALL[..],
                families => families,
            };
            pools = families
                .iter()
                .map(|family| (*family, pool.clone()))
                .collect();
        }
        Ok(Wanted {
            addresses: Vec::new(),
            families: requested.families.clone(),
            pools,
        })
    }

    /// DEL: whatever is missing, what is there goes. Where no agent answers, it is queued.
    fn delete(&self, role: Role) -> Result<(), Failure> {
        let Some(owner) = environment::deleted(self.variables)? else {
            log::warn(
                "DEL: ADD takes no such container or interface, so there is nothing to delete",
            );
            return Ok(());
        };
        let owner = &owner;
        self.queue.settle(&self.agent, None)?;
        let is_delegated = matches!(self.config.ipam, Ipam::Delegated(_));
        let turn = is_delegated.then(|| self.take_turn(owner)).transpose();
        // If no lock is possible, the removal goes on without it.
        let _turn = match turn {
            Err(failure) if failure.code != Code::Io => return Err(failure),
            turn => turn,
        };
        let deleted = match role {
            Role::Interface => self.agent.detach(owner, Exchange::Del),
            Role::Ipam => self.agent.release(owner),
        };
        match deleted {
            Ok(()) => self.queue.forget(owner),
            Err(error) if error.is_absence() => {
                self.queue.push(owner, &self.config.name)?;
                log::warn(&format!("DEL {owner} is queued: {error}"));
            }
            Err(CallError::Refused(refusal))
                // The agent has never made anything for an owner whose name it refuses.
                if matches!(
                    refusal.code.as_str(),
                    "unknown-endpoint" | "unknown-lease" | "invalid-field"
                ) =>
            {
                self.queue.forget(owner);
            }
            Err(error) => return Err(error.into_failure(&format!("DEL {owner}"))),
        }
        // Only now: the address must not go to another container while this one has it.
        match self.delegate()? {
            Some(delegate) => delegate.call(Command::Del, &self.config.raw),
            None => Ok(()),
        }
    }

    fn collect(&self) -> Result<(), Failure> {
        // The specification has it required; we need it where there is a delegated plugin.
        environment::search_path(self.variables)?;
        let Some(valid) = &self.config.valid else {
            let message = "cni.dev/valid-attachments is missing: GC would remove every container";
            return Err(Failure::new(Code::InvalidConfig, message));
        };
        self.queue.settle(&self.agent, None)?;
        let agents = self
            .agent
            .collect(&self.config.name, valid)
            .map_err(|error| error.into_failure("GC"))?;
        match self.delegate()? {
            Some(delegate) => delegate.call(Command::Gc, &self.config.with_valid(&agents)),
            None => Ok(()),
        }
    }
}

/// The pod, where the runtime says enough about it: the agent knows none without a name.
fn known(pod: &Pod) -> Option<&Pod> {
    (pod.namespace.is_some() && pod.name.is_some()).then_some(pod)
}

/// The namespace of ADD and CHECK.
fn namespace(target: &Target) -> Result<&Path, Failure> {
    target.netns.as_deref().ok_or_else(|| {
        let message = "required environment variables are missing: CNI_NETNS";
        Failure::new(Code::InvalidEnvironment, message)
    })
}

/// Previous result that CHECK compares with.
fn previous(config: &Config) -> Result<&crate::request::config::PreviousResult, Failure> {
    config.previous.as_ref().ok_or_else(|| {
        let message = "prevResult is missing: CHECK compares with it";
        Failure::new(Code::InvalidConfig, message)
    })
}

/// Result of CHECK.
fn verdict(problems: &[String]) -> Result<(), Failure> {
    if problems.is_empty() {
        return Ok(());
    }
    let message = "the container's network is not as it should be";
    Err(Failure::new(Code::CheckFailed, message).with_details(problems.join("; ")))
}
