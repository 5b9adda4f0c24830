//! What the agent says of masquerade.

use std::path::Path;

use super::actor::Actor;
use super::kernel::Host;
use crate::api::types::{
    Explanation, FileStatus, FlowFilter, MasqueradeStatus, NatFlow, SysctlStatus,
};
use crate::api::{ApiError, ErrorCode, Reply};
use crate::follow::Followed;
use crate::masquerade::{
    Asked, DEFAULT_POOL, Found, Live, PortList, Protocol, Tuple, metadata_name,
};
use crate::netlink;
use crate::types::EniNumber;

impl<K: Host> Actor<K> {
    /// What the decision looks at.
    pub(super) fn masquerade(&self) -> MasqueradeStatus {
        let settings = &self.intent.settings.masquerade;
        MasqueradeStatus {
            ipv4: settings.ipv4,
            ipv6: settings.ipv6,
            external: settings.external,
            metadata: metadata_name(settings.metadata).to_owned(),
            only_default_pool: settings.only_default_pool,
            pool_documents: file(settings.pools.as_deref(), self.files.pools()),
            ip_masq_agent: file(settings.agent.as_deref(), self.files.agent()),
            notes: self.masquerade_notes(),
            view: self.pass.view.masquerade.clone(),
        }
    }

    /// What is worth knowing about pools, files and translation addresses.
    pub(super) fn masquerade_notes(&self) -> Vec<String> {
        let policy = &self.intent.policy;
        let pools = policy.pools.iter().flat_map(|pools| pools.notes());
        let agent = policy.agent.iter().flat_map(|agent| &agent.notes);
        let mut notes: Vec<String> = pools.chain(agent).cloned().collect();
        for pool in &self.pass.view.masquerade.pools {
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
        for eni in &self.pass.view.masquerade.enis {
            // IPv6 is off, and without addresses, on most ENIs.
            if let Some(reason) = &eni.ipv4.no_address {
                notes.push(format!(
                    "ENI {} has no IPv4 address to translate to: {reason}",
                    eni.number
                ));
            }
        }
        notes
    }

    /// Why files of the policy are not used as they are now.
    pub(super) fn policy_errors(&self) -> Vec<String> {
        let pools = self.files.pools().map(|pools| {
            let force = if pools.value.is_some() {
                "the last good pool documents stay in force"
            } else {
                "no good pool documents; each address keeps what it had"
            };
            (force, pools.error)
        });
        let agent = self.files.agent().map(|agent| {
            let force = if agent.value.is_some() {
                "the last good ip-masq-agent file stays in force"
            } else {
                "no good ip-masq-agent file; what was exempt stays so, else the standard list holds"
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

    /// Tells what becomes of a packet, by the live maps. With ports the sweeper's thread, which
    /// reads the flows, answers.
    pub(super) fn explain(&self, tuple: Tuple, reply: Reply<Explanation>) {
        let entries = match self.reconciler.kernel().map_entries() {
            Ok(entries) => entries,
            Err(error) => {
                reply.send(Err(internal(&error))).ok();
                return;
            }
        };
        let settings = self.intent.settings.masquerade.clone();
        let answer = move |flow| {
            let live = Live {
                entries: &entries,
                settings: &settings,
            };
            explain(&live, &tuple, flow)
        };
        if tuple.ports().is_none() {
            reply.send(answer(Found::NotAsked)).ok();
            return;
        }
        let filter = FlowFilter {
            pod: Some(tuple.source.address),
            remote: Some(tuple.destination.address),
            protocol: Some(tuple.number().to_string()),
            all: false,
        };
        self.nat.list(
            filter,
            Box::new(move |flows| {
                let flows = flows.map_err(|error| internal(&error));
                reply
                    .send(flows.and_then(|flows| answer(find(&flows.flows, &tuple))))
                    .ok();
            }),
        );
    }
}

fn internal(error: &anyhow::Error) -> ApiError {
    ApiError::new(ErrorCode::Internal, format!("{error:#}"))
}

fn explain(live: &Live<'_>, tuple: &Tuple, flow: Found) -> Result<Explanation, ApiError> {
    let asked = Asked {
        source: tuple.source.address,
        destination: tuple.destination.address,
        has_ports: !matches!(tuple.protocol, Protocol::Other(_)),
        flow,
    };
    live.explain(&asked).ok_or_else(|| {
        let address = tuple.source.address;
        let message = format!(
            "{address} is no address of a pod of this node; allowed: one that `towpath endpoints` \
             lists"
        );
        ApiError::new(ErrorCode::InvalidField, message).at("source")
    })
}

/// A packet's flow, among those of its addresses and protocol.
fn find(flows: &[NatFlow], tuple: &Tuple) -> Found {
    let is_it = |flow: &&NatFlow| tuple.ports() == Some((flow.pod_port, flow.remote_port));
    match flows.iter().find(is_it) {
        None => Found::Unknown,
        Some(flow) => match (flow.eni, flow.translated_port) {
            (Some(eni), Some(port)) => Found::Translated {
                eni: EniNumber(eni),
                port,
            },
            (Some(eni), None) => Found::Stack {
                eni: EniNumber(eni),
            },
            (None, _) => Found::Inbound,
        },
    }
}

fn file<T>(path: Option<&Path>, followed: Option<Followed<T>>) -> Option<FileStatus> {
    let followed = followed?;
    Some(FileStatus {
        path: path?.to_owned(),
        generation: followed.generation,
        error: followed.error,
    })
}

/// What the reserved ports leave to the host.
pub(super) fn reserved_ports() -> Option<SysctlStatus> {
    let reserved = netlink::reserved_ports()?;
    let automatic = netlink::automatic_ports();
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
    use crate::api::types::FlowKind;

    #[test]
    fn the_live_flow_is_the_one_with_both_ports() {
        let peer = |text: &str| text.parse().unwrap();
        let tuple = |protocol: &str, from: &str, to: &str| {
            Tuple::new(protocol.parse().unwrap(), peer(from), peer(to)).unwrap()
        };
        let flow = |pod_port, remote_port, translated: Option<(u8, u16)>| NatFlow {
            family: "ipv4".to_owned(),
            protocol: "tcp".to_owned(),
            kind: translated.map_or(FlowKind::Inbound, |_| FlowKind::Pod),
            pod: "10.0.1.20".parse().unwrap(),
            pod_port,
            eni: translated.map(|(eni, _)| eni),
            translated: None,
            translated_port: translated.map(|(_, port)| port),
            remote: "1.1.1.1".parse().unwrap(),
            remote_port,
            phase: "established".to_owned(),
            idle_seconds: 0,
            expires_seconds: 1,
        };
        let flows = [
            flow(40_000, 80, Some((1, 50_000))),
            flow(40_000, 443, Some((2, 50_001))),
            flow(443, 40_000, None),
            NatFlow {
                kind: FlowKind::Stack,
                eni: Some(1),
                ..flow(8080, 40_000, None)
            },
            flow(40_000, 0, Some((0, 50_002))),
        ];
        let found = |protocol, from, to| find(&flows, &tuple(protocol, from, to));
        let eni = EniNumber;
        assert_eq!(
            found("tcp", "10.0.1.20:40000", "1.1.1.1:443"),
            Found::Translated {
                eni: eni(2),
                port: 50_001
            }
        );
        assert_eq!(
            found("tcp", "10.0.1.20:443", "1.1.1.1:40000"),
            Found::Inbound
        );
        assert_eq!(
            found("tcp", "10.0.1.20:8080", "1.1.1.1:40000"),
            Found::Stack { eni: eni(1) }
        );
        assert_eq!(
            found("tcp", "10.0.1.20:40001", "1.1.1.1:443"),
            Found::Unknown
        );
        // An echo request has its id where the source port is told.
        assert_eq!(
            found("icmp", "10.0.1.20:40000", "1.1.1.1"),
            Found::Translated {
                eni: eni(0),
                port: 50_002
            }
        );
    }

    #[test]
    fn what_the_host_keeps_is_counted() {
        let list = |text: &str| text.parse::<PortList>().unwrap();
        assert_eq!(
            kept(&list("32768-60999"), &list("8080,40960-65535")),
            "the host keeps 8192 of its 28232 automatic ports (32768-60999)"
        );
    }
}
