//! The task that keeps the agent's own addresses: it finds their source, requests them, and passes
//! them to the actor. Pods do not wait for it.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;

use anyhow::{Context as _, Result};
use ingress::{Keeper, Progress, Refusal, Request, State, User};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use towpath_cni::request::owner::Owner as PluginOwner;

use crate::actor::ingress::{IngressReport, OwnAddresses, owner};
use crate::fault_points::{self, Point};
use crate::server::{Command, Handle, IngressCommand};
use api::ids::Owner;
use api::{ApiError, ErrorCode};
use config::{Config, Ingress};
use ipam::Family;

/// Interval of checking the runtimes' configuration and the addresses in use.
const LOOK: Duration = Duration::from_secs(10);
/// Interval while the agent waits for its node's document.
const SOON: Duration = Duration::from_secs(1);

/// The task that keeps the agent's own addresses.
pub(crate) struct IngressTask {
    settings: Settings,
    keeper: Keeper,
    agent: Agent,
    report: watch::Sender<IngressReport>,
    began: Instant,
}

struct Settings {
    mode: Ingress,
    allocates: bool,
    families: BTreeSet<Family>,
    conf_dir: PathBuf,
    folders: Vec<PathBuf>,
}

/// The source of the addresses.
enum Giver {
    Nobody,
    Plugin(Box<Request>),
    Agent(Owner),
}

impl IngressTask {
    /// Opens the record, and returns the task and the actor's part of its state.
    ///
    /// # Errors
    /// If there is a record that cannot be opened.
    pub(crate) fn open(config: &Config, agent: Handle) -> Result<(Self, OwnAddresses)> {
        let section = &config.agent_addresses;
        let folder = section.state_dir.as_path();
        let reach = |moment| fault_points::reach(Point::Ingress(moment));
        let keeper = Keeper::open(folder, section.timeout.get(), reach);
        let (report, reported) = watch::channel(IngressReport::default());
        let pool = section.pool.as_ref().unwrap_or(&config.ipam.default_pool);
        let own = OwnAddresses::new(section.ingress.clone(), pool.as_str(), reported);
        let families = config.ipam.families.get().clone();
        let task = Self {
            settings: Settings {
                mode: section.ingress.clone(),
                allocates: config.ipam.enabled,
                families: families.clone(),
                conf_dir: config.cni.conf_dir.as_path().to_owned(),
                folders: section.folders(),
            },
            keeper: keeper
                .with_context(|| format!("agent-addresses.state-dir: {}", folder.display()))?,
            agent: Agent {
                handle: agent,
                families,
                notes: Mutex::default(),
            },
            report,
            began: Instant::now(),
        };
        Ok((task, own))
    }

    /// Runs until the agent stops taking commands.
    pub(crate) async fn run(mut self) {
        if fault_points::is_older() {
            return std::future::pending().await;
        }
        while !self.agent.handle.is_closed() {
            let mut problems = Vec::new();
            let wait = match self.turn().await {
                Ok(wait) => wait,
                Err(problem) => {
                    problems.push(problem);
                    LOOK
                }
            };
            problems.extend(self.keeper.problems());
            problems.extend(self.agent.notes());
            let problems = problems.into_iter();
            let problems = problems.map(|problem| format!("agent-addresses.ingress: {problem}"));
            self.tell(problems.collect());
            sleep(wait).await;
        }
    }

    fn tell(&mut self, problems: Vec<String>) {
        let failures = self.keeper.failures();
        self.report.send_if_modified(|report| {
            for problem in problems.iter().filter(|one| !report.problems.contains(one)) {
                tracing::warn!("{problem}");
            }
            let next = IngressReport { problems, failures };
            let is_new = *report != next;
            *report = next;
            is_new
        });
    }

    /// Does all that is due, and returns the time until the next turn.
    async fn turn(&mut self) -> Result<Duration, String> {
        let name = |reply| Command::Ingress(IngressCommand::Name(reply));
        // Without the document no address can be used or given up.
        let Ok(name) = self.agent.handle.ask(name).await else {
            return Ok(SOON);
        };
        let giver = self.settings.giver(&name);
        let (request, problem) = match &giver {
            Ok(Giver::Plugin(request)) => (Some(&**request), None),
            Ok(Giver::Nobody | Giver::Agent(_)) => (None, None),
            // Addresses in use stay while their source is unknown.
            Err(problem) => (self.in_use(), Some(problem.clone())),
        };
        let request = request.cloned();
        let wait = loop {
            let now = self.began.elapsed();
            match self.keeper.step(request.as_ref(), &self.agent, now).await {
                Progress::Stepped => {}
                Progress::Rests(until) => {
                    break until.map_or(LOOK, |until| until.saturating_sub(now).min(LOOK));
                }
            }
        };
        self.give_up_others(&giver).await?;
        if let Some(problem) = problem {
            return Err(problem);
        }
        if let Ok(Giver::Agent(owner)) = &giver
            && !self.allocate(owner).await?
        {
            return Ok(SOON);
        }
        self.use_on().await?;
        Ok(wait)
    }

    fn in_use(&self) -> Option<&Request> {
        let mut entries = self.keeper.record().entries.iter();
        let given = entries.find(|entry| matches!(entry.state, State::Given { .. }));
        given.map(|entry| &entry.request)
    }

    /// Uses the given addresses again, since a namespace may have been replaced.
    async fn use_on(&self) -> Result<(), String> {
        for entry in &self.keeper.record().entries {
            if let State::Given { addresses, .. } = &entry.state {
                let taken = self.agent.take(&entry.request.owner, addresses).await;
                taken.map_err(|refusal| match refusal {
                    Refusal::Later(reason) | Refusal::Never(reason) => reason,
                })?;
            }
        }
        Ok(())
    }

    /// Gives up the actor's addresses of owners that have no source any more.
    async fn give_up_others(&self, giver: &Result<Giver, String>) -> Result<(), String> {
        let owners = |reply| Command::Ingress(IngressCommand::Owners(reply));
        let owners = self
            .agent
            .handle
            .ask(owners)
            .await
            .map_err(|error| error.to_string())?;
        let given = self.keeper.record().entries.iter();
        let given: Vec<Owner> = given.map(|entry| converted(&entry.request.owner)).collect();
        for one in owners {
            let is_allocated = matches!(giver, Ok(Giver::Agent(owner)) if *owner == one);
            if !is_allocated && !given.contains(&one) {
                self.agent.give_up(&one).await?;
            }
        }
        Ok(())
    }

    /// Allocates the addresses from the agent's own allocator; false while that waits for its
    /// start, which the status reports for pods.
    async fn allocate(&self, owner: &Owner) -> Result<bool, String> {
        let (of, families) = (owner.clone(), self.settings.families.clone());
        let ask = |reply| Command::Ingress(IngressCommand::Allocate(of, families, reply));
        let given = self
            .agent
            .handle
            .ask(ask)
            .await
            .map_err(|error| error.to_string())?;
        if given.is_empty() {
            return Ok(false);
        }
        let take = |reply| Command::Ingress(IngressCommand::Take(owner.clone(), given, reply));
        let taken = self.agent.handle.ask(take).await;
        taken.map(|()| true).map_err(|error| error.to_string())
    }
}

impl Settings {
    fn giver(&self, node: &str) -> Result<Giver, String> {
        if self.mode == Ingress::Off {
            return Ok(Giver::Nobody);
        }
        let network = ingress::network(&self.conf_dir).map_err(|error| error.to_string())?;
        if let Some(network) = network {
            let request = Request::new(node, &network, &self.folders);
            return Ok(Giver::Plugin(Box::new(request)));
        }
        if self.allocates {
            return Ok(Giver::Agent(owner(node)));
        }
        let folder = self.conf_dir.display();
        Err(format!(
            "no source of addresses: ipam.enabled is false, and no configuration in {folder} delegates \
             towpath-cni's ipam to a plugin"
        ))
    }
}

/// Gives everything back to the delegated plugin; returns the problems.
///
/// # Errors
/// When the record is there and cannot be opened.
pub(crate) async fn give_back(config: &Config) -> Result<Vec<String>> {
    let section = &config.agent_addresses;
    let folder = section.state_dir.as_path();
    let keeper = Keeper::open(folder, section.timeout.get(), |_moment| {});
    let mut keeper =
        keeper.with_context(|| format!("agent-addresses.state-dir: {}", folder.display()))?;
    while keeper.step(None, &Nobody, Duration::ZERO).await == Progress::Stepped {}
    Ok(keeper.problems())
}

/// User without addresses, for the time when no agent runs.
struct Nobody;

impl User for Nobody {
    async fn take(&self, _: &PluginOwner, _: &BTreeSet<IpAddr>) -> Result<(), Refusal> {
        Ok(())
    }

    async fn leave(&self, _: &PluginOwner) -> Result<(), String> {
        Ok(())
    }
}

/// The actor, as a user of addresses.
struct Agent {
    handle: Handle,
    families: BTreeSet<Family>,
    /// Messages about addresses of an answer that are not used.
    notes: Mutex<Vec<String>>,
}

impl Agent {
    fn notes(&self) -> Vec<String> {
        self.notes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    async fn give_up(&self, owner: &Owner) -> Result<(), String> {
        let leave = |reply| Command::Ingress(IngressCommand::Leave(owner.clone(), reply));
        self.handle
            .ask(leave)
            .await
            .map_err(|error| error.to_string())
    }
}

impl User for Agent {
    async fn take(&self, owner: &PluginOwner, all: &BTreeSet<IpAddr>) -> Result<(), Refusal> {
        let is_on = |address: &&IpAddr| self.families.contains(&Family::of(**address));
        let (used, off): (BTreeSet<&IpAddr>, BTreeSet<&IpAddr>) = all.iter().partition(is_on);
        let note = |address: &&IpAddr| {
            let family = Family::of(**address).name();
            format!("{address} of the plugin is not used: {family} is not among ipam.families")
        };
        *self.notes.lock().unwrap_or_else(PoisonError::into_inner) = off.iter().map(note).collect();
        for family in &self.families {
            if !used.iter().any(|address| Family::of(**address) == *family) {
                let name = family.name();
                let reason = format!(
                    "the plugin allocated no {name} address; expected one of each family in ipam.families"
                );
                return Err(Refusal::Never(reason));
            }
        }
        let used = used.into_iter().copied().collect();
        let take = |reply| Command::Ingress(IngressCommand::Take(converted(owner), used, reply));
        let taken = self.handle.ask(take).await;
        taken.map_err(|error| refusal(&error))
    }

    async fn leave(&self, owner: &PluginOwner) -> Result<(), String> {
        self.notes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
        self.give_up(&converted(owner)).await
    }
}

/// Converts an error of the actor to a final refusal or a temporary one.
fn refusal(error: &ApiError) -> Refusal {
    match error.code {
        ErrorCode::AddressNotOwned
        | ErrorCode::AddressInUse
        | ErrorCode::AddressOfHost
        | ErrorCode::EniExcluded => Refusal::Never(error.to_string()),
        _ => Refusal::Later(error.to_string()),
    }
}

fn converted(owner: &PluginOwner) -> Owner {
    Owner {
        container_id: owner.container_id.clone(),
        interface: owner.interface.clone(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// The source of a node's addresses, by a folder of the runtimes' configuration.
    fn source(folder: &tempfile::TempDir, mode: Ingress, allocates: bool) -> String {
        let settings = Settings {
            mode,
            allocates,
            families: Family::ALL.into(),
            conf_dir: folder.path().to_owned(),
            folders: vec!["/opt/cni/bin".into()],
        };
        match settings.giver("n") {
            Ok(Giver::Nobody) => "none".to_owned(),
            Ok(Giver::Plugin(request)) => request.plugin.display().to_string(),
            Ok(Giver::Agent(owner)) => owner.container_id,
            Err(problem) => problem,
        }
    }

    #[test]
    fn the_source_is_the_delegated_plugin_or_the_allocator_and_without_both_it_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let netns = || Ingress::Netns("/run/netns/gateway".into());
        for mode in [Ingress::On, netns()] {
            let allocated = source(&folder, mode.clone(), true);
            assert_eq!(allocated, "towpath-ingress-n");
            let problem = source(&folder, mode, false);
            assert!(
                problem.starts_with("no source of addresses: ipam.enabled is false"),
                "{problem}"
            );
        }
        let list = r#"{"cniVersion": "1.0.0", "name": "pods", "plugins": [
            {"type": "towpath-cni", "ipam": {"type": "host-local"}}]}"#;
        fs::write(folder.path().join("10-pods.conflist"), list).unwrap();
        for allocates in [true, false] {
            let plugin = source(&folder, netns(), allocates);
            assert_eq!(plugin, "/opt/cni/bin/host-local");
            assert_eq!(source(&folder, Ingress::Off, allocates), "none");
        }
        let damaged = list.replace("host-local", "a/b");
        fs::write(folder.path().join("10-pods.conflist"), damaged).unwrap();
        let problem = source(&folder, Ingress::On, true);
        assert!(
            problem.contains("10-pods.conflist: ipam.type is"),
            "{problem}"
        );
    }
}
