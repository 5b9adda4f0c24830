//! Taking everything of ours off the node.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use datapath_common::abi;
use loader::bpf;
use loader::bpf::{BpfOptions, Datapath};
use loader::kernel::{Object, Observed, StepKind};
use loader::netfilter::untracked;
use loader::netlink::Netlink;
use loader::observation::ownership::{Owned, is_fence, recognise};
use serde::Serialize;

use crate::actor::ingress::task::give_back;
use crate::allocation;
use crate::host::earlier_ports;
use crate::host::netns_lock::NetnsLock;
use crate::host::reservation::Reservation;
use crate::run::ENDPOINTS;
use crate::run::cni_install as cni;
use crate::state::identity;
use crate::state::lock::{Lock, PinsLock};
use config::Config;
use sources::kept;
use sources::numbering;

/// Result of a clean-up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CleanUp {
    /// The objects, in the order in which they went.
    pub objects: Vec<String>,
    /// The objects that the kernel refused to remove, with its reasons.
    pub failures: Vec<String>,
}

/// Removes all of our objects: endpoints, addresses, routes, rules, attachments, maps, records.
/// Sysctls, MTUs and link states stay: their former values are unknown. The exception is the list
/// of reserved ports: a record lists the ports that we added.
///
/// Runtimes lose the plugin first, whose entry is in the configuration list in `conf_dir`.
///
/// Objects that are not needed to recognize the others are removed first, so that an interrupted
/// clean-up can be run again.
///
/// # Errors
/// When an agent runs; when there are endpoints and `with_endpoints` does not allow to remove them;
/// when the kernel cannot be read. An object that the kernel refuses to remove is no error: it is
/// among the failures, and the others are removed.
pub async fn cleanup(config: &Config, conf_dir: &Path, with_endpoints: bool) -> Result<CleanUp> {
    let state = config.state_dir.as_path();
    let _lock = Lock::take(state, Duration::ZERO).context("stop the agent first")?;
    let about = format!("cleanup of state-dir {}", state.display());
    let _netns = NetnsLock::take(&about, Duration::ZERO).context("stop the agent first")?;
    let settings = config.settings();
    let options = config.bpf_options();
    let root = options.pin_root.as_path();
    let _pins = root
        .is_dir()
        .then(|| PinsLock::take(root, Duration::ZERO).context("stop the agent first"))
        .transpose()?;
    let mut netlink = Netlink::open(settings.protocol)?;

    let observed = observe(&mut netlink, config).await?;
    let mut owned: Vec<_> = recognise(&observed, settings.protocol)
        .into_iter()
        .filter_map(|owned| Some((rank(&owned.object())?, owned)))
        .collect();
    owned.sort_by_key(|(rank, _)| *rank);
    let endpoints = owned.iter().filter(|(rank, _)| *rank == 0).count();
    if endpoints > 0 && !with_endpoints {
        bail!("{endpoints} endpoints would lose their network; pass --yes to proceed");
    }

    let plugin = remove_plugin(config, conf_dir)?;
    let owned = owned.iter().map(|(_, owned)| owned);
    let mut removed = remove(owned, &observed, async |step| netlink.apply(step).await).await;
    removed.objects.splice(0..0, plugin);
    // Nothing has them any more.
    let kept = give_back(config).await?.into_iter();
    removed
        .failures
        .extend(kept.map(|problem| format!("agent-addresses.ingress: {problem}")));
    removed
        .objects
        .extend(remove_datapath(&options, &observed)?);
    match untracked::remove() {
        Ok(true) => removed
            .objects
            .push("nftables table inet towpath".to_owned()),
        Ok(false) => {}
        Err(error) => removed.failures.push(format!("{error:#}")),
    }
    removed.objects.extend(remove_state(state)?);
    identity::remove(state, root)?;
    Ok(removed)
}

/// Removes attachments and pins; returns their names.
fn remove_datapath(options: &BpfOptions, observed: &Observed) -> Result<Vec<String>> {
    let removed = bpf::remove_pins(options).context("remove the datapath")?;
    let filters = removed.filters.iter();
    let filters = filters.map(|filter| format!("filter {filter}"));
    let qdiscs = removed.qdiscs.iter().map(|ifindex| {
        let link = observed.links.get(ifindex);
        let device = link.map_or_else(|| ifindex.to_string(), |link| link.name.clone());
        format!("clsact of {device}")
    });
    let pins = removed.pins.iter().map(|pin| format!("pin {pin}"));
    Ok(filters.chain(qdiscs).chain(pins).collect())
}

/// Removes the records of the state folder; returns the names of those that matter to users.
fn remove_state(state: &Path) -> Result<Vec<String>> {
    let mut removed = Vec::new();
    removed.extend(Reservation::new(state).withdraw()?);
    removed.extend(remove_records(&state.join(ENDPOINTS))?);
    removed.extend(allocation::remove_ledger(state)?);
    numbering::remove(state)?;
    earlier_ports::remove(state)?;
    kept::remove(state)?;
    Ok(removed)
}

/// Removes objects one by one. One that cannot be removed does not keep the others.
async fn remove<'o>(
    owned: impl IntoIterator<Item = &'o Owned>,
    observed: &Observed,
    mut apply: impl AsyncFnMut(&StepKind) -> Result<()>,
) -> CleanUp {
    let mut removed = CleanUp::default();
    for owned in owned {
        let Some(step) = owned.removal() else {
            continue;
        };
        let object = owned.object().describe(&observed.links);
        match apply(&step).await {
            Ok(()) => removed.objects.push(object),
            Err(error) => removed.failures.push(format!("{object}: {error:#}")),
        }
    }
    removed
}

/// When an object goes; `None` for what goes with the pins or with something else.
fn rank(object: &Object) -> Option<u8> {
    match object {
        Object::Device(_) => Some(0),
        Object::Neighbour(_) => Some(1),
        Object::Address(_) => Some(2),
        Object::Route(route) if is_fence(route) => Some(4),
        Object::Route(_) => Some(3),
        Object::Rule(_) => Some(5),
        Object::Sysctl(..)
        | Object::ReservedPorts(_)
        | Object::Mtu { .. }
        | Object::Up(_)
        | Object::MapEntry(_)
        | Object::Attachment(_) => None,
    }
}

/// The kernel, with the maps if there are any: they show which devices are our ENIs'.
async fn observe(netlink: &mut Netlink, config: &Config) -> Result<Observed> {
    let mut observed = Observed::default();
    netlink
        .observe(&mut observed)
        .await
        .context("read the network configuration")?;
    let options = config.bpf_options();
    let pins = options.pin_root.join(format!("v{}", abi::VERSION));
    if pins.exists() {
        let read = Datapath::load(&options, &config.datapath_settings())
            .and_then(|mut datapath| datapath.observe(&mut observed));
        if let Err(error) = read {
            tracing::warn!("the maps could not be read: {error:#}");
        }
    }
    Ok(observed)
}

/// Removes the plugin's entry of the configuration list, and its notes.
fn remove_plugin(config: &Config, conf_dir: &Path) -> Result<Vec<String>> {
    let report = cni::forget(conf_dir, config.cni.pending_deletes.state_dir())?;
    let files = report.changed.into_iter();
    let files = files.map(|file| format!("file {}", file.display()));
    Ok(files.chain(report.notes).collect())
}

fn remove_records(folder: &Path) -> Result<Option<String>> {
    match fs::remove_dir_all(folder) {
        Ok(()) => Ok(Some(format!("records {}", folder.display()))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("remove {}", folder.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ipam::Family;
    use loader::kernel::{Action, Rule, Selector};

    #[tokio::test]
    async fn what_cannot_be_removed_is_named_and_the_rest_goes() {
        let rule = |priority, action| Rule {
            family: Family::V4,
            priority,
            selector: Selector::All,
            action,
            protocol: 2,
        };
        let observed = Observed {
            rules: [rule(20, Action::Table(220)), rule(112, Action::Nop)].into(),
            ..Observed::default()
        };
        let owned = recognise(&observed, 2);
        let removed = remove(&owned, &observed, async |step| match step {
            StepKind::DeleteRule(rule) if rule.priority == 20 => bail!("no"),
            _ => Ok(()),
        })
        .await;
        assert_eq!(removed.failures, ["20: from all lookup 220: no"]);
        assert_eq!(removed.objects, ["112: from all nop"]);
    }
}
