//! Masquerade in the agent's status.

use std::net::IpAddr;
use std::path::Path;

use api::Tuple;
use api::types::{Explanation, FileStatus, MasqueradeStatus, SysctlStatus};
use api::{ApiError, ErrorCode};
use ipnet::IpNet;
use loader::intent::Eni;
use loader::intent::masquerade::{DEFAULT_POOL, PortList, metadata_name};
use loader::netlink::PortSysctls;
use policy::{Live, Packet, unknown_source};

use crate::actor::Actor;
use crate::host::kernel::Host;
use crate::server::Reply;
use sources::follow::Followed;

/// Number of surplus networks that are named.
const NAMED: usize = 4;

/// A note on the host's networks that the datapath has no room for.
fn left_out(nets: &[IpNet]) -> Option<String> {
    let named = nets.iter().take(NAMED).map(ToString::to_string);
    let named = named.collect::<Vec<_>>().join(", ");
    (!nets.is_empty()).then(|| {
        format!(
            "{} networks of the host's routes are one too many ({named}, ...): pods' packets to them leave \
             by the pods' ENIs; name wider networks in host-cidrs",
            nets.len()
        )
    })
}

impl<K: Host> Actor<K> {
    /// The inputs of the decision.
    pub(crate) fn masquerade(&self) -> MasqueradeStatus {
        let settings = &self.intent.settings.masquerade;
        MasqueradeStatus {
            ipv4: settings.ipv4,
            ipv6: settings.ipv6,
            external: settings.external,
            metadata: metadata_name(settings.metadata).to_owned(),
            only_default_pool: settings.only_default_pool,
            pool_documents: file(settings.pools.as_deref(), self.documents.files.pools()),
            ip_masq_agent: file(settings.agent.as_deref(), self.documents.files.agent()),
            notes: self.masquerade_notes(),
            view: self.passes.last.view.masquerade.clone(),
        }
    }

    /// Notes on pools, files and translation addresses.
    pub(crate) fn masquerade_notes(&self) -> Vec<String> {
        let policy = &self.intent.policy;
        let pools = policy.pools.iter().flat_map(|pools| pools.notes());
        let agent = policy.agent.iter().flat_map(|agent| &agent.notes);
        let mut notes: Vec<String> = pools.chain(agent).cloned().collect();
        for pool in &self.passes.last.view.masquerade.pools {
            let is_known = policy.pools.as_ref().is_none_or(|all| all.has(&pool.name));
            if !is_known && pool.name != DEFAULT_POOL {
                let then = match pool.policy.as_ref().map(|policy| policy.skip_masquerade) {
                    Some(true) => "it skips masquerade, because of only-default-pool",
                    Some(false) | None => "it is masqueraded",
                };
                let name = &pool.name;
                notes.push(format!(
                    "pool {name} is allocated and has no document: {then}"
                ));
            }
        }
        for eni in &self.passes.last.view.masquerade.enis {
            // IPv6 is off, and without addresses, on most ENIs; some are in subnets without IPv4.
            let entry = self.intent.node.enis.get(&eni.number);
            if entry.is_none_or(Eni::has_ipv4)
                && let Some(reason) = &eni.ipv4.no_address
            {
                notes.push(format!(
                    "ENI {} has no IPv4 address to translate to: {reason}",
                    eni.number
                ));
            }
        }
        notes.extend(left_out(&self.passes.last.view.masquerade.left_out));
        notes
    }

    /// Why files of the policy are not used as they are now.
    pub(crate) fn policy_errors(&self) -> Vec<String> {
        let pools = self.documents.files.pools().map(|pools| {
            let force = if pools.value.is_some() {
                "the last good pool documents stay in force"
            } else {
                "no valid pool documents; each address keeps its policy"
            };
            (force, pools.error)
        });
        let agent = self.documents.files.agent().map(|agent| {
            let force = if agent.value.is_some() {
                "the last good ip-masq-agent file stays in force"
            } else {
                "no valid ip-masq-agent file; known exemptions stay, or the standard list applies"
            };
            (force, agent.error)
        });
        let all = pools.into_iter().chain(agent);
        let refused = self.intent.policy.pools.iter();
        let refused = refused.flat_map(|pools| pools.refused());
        all.filter_map(|(force, error)| Some(format!("{force}: {}", error?)))
            .chain(refused.map(ToString::to_string))
            .collect()
    }

    /// Explains the fate of a packet, by the live maps. The garbage-collection thread, which reads
    /// the flows, answers.
    pub(crate) fn explain(&self, tuple: Tuple, reply: Reply<Explanation>) {
        let kernel = self.reconciler.kernel();
        let entries = match kernel.map_entries() {
            Ok(entries) => entries,
            Err(error) => {
                reply.send(Err(internal(&error))).ok();
                return;
            }
        };
        let (settings, lookups) = (kernel.datapath_settings(), self.observers.nat.lookups());
        let source = tuple.source.address;
        let mut endpoints = self.intent.endpoints.values();
        let is_endpoints = endpoints.any(|endpoint| endpoint.addresses.contains(&source));
        self.observers.nat.look(Box::new(move |tables| {
            let live = Live {
                entries: &entries,
                settings: &settings,
                lookups,
                tables,
            };
            let answer = match live.explain(&Packet::from(&tuple)) {
                Ok(Some(explanation)) => Ok(explanation),
                Ok(None) if is_endpoints => Ok(unknown_source()),
                Ok(None) => Err(not_a_pods(source)),
                Err(error) => Err(internal(&error)),
            };
            // A caller that went away needs no answer.
            reply.send(answer).ok();
        }));
    }
}

fn internal(error: &anyhow::Error) -> ApiError {
    ApiError::new(ErrorCode::Internal, format!("{error:#}"))
}

fn not_a_pods(address: IpAddr) -> ApiError {
    let message = format!(
        "{address} is no address of a pod of this node, and a pod that sends with it is dropped \
         (spoofed-source); allowed: one that `towpath endpoints` lists"
    );
    ApiError::new(ErrorCode::InvalidField, message).at("source")
}

fn file<T>(path: Option<&Path>, followed: Option<Followed<T>>) -> Option<FileStatus> {
    let followed = followed?;
    Some(FileStatus {
        path: path?.to_owned(),
        generation: followed.generation,
        error: followed.error,
    })
}

/// The ports that reservations leave to the host.
pub(crate) fn reserved_ports() -> Option<SysctlStatus> {
    let mut ports = PortSysctls::new();
    let reserved = ports.reserved()?;
    let automatic = ports.automatic();
    Some(SysctlStatus {
        name: "net.ipv4.ip_local_reserved_ports".to_owned(),
        effective: reserved.to_string(),
        effect: automatic.map(|automatic| kept(&automatic, &reserved)),
    })
}

fn kept(automatic: &PortList, reserved: &PortList) -> String {
    let left = automatic.minus(reserved).count();
    format!(
        "the host keeps {left} of its {} automatic ports ({automatic})",
        automatic.count()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_host_keeps_is_counted() {
        let list = |text: &str| text.parse::<PortList>().unwrap();
        assert_eq!(
            kept(&list("32768-60999"), &list("8080,40960-65535")),
            "the host keeps 8192 of its 28232 automatic ports (32768-60999)"
        );
    }
}
