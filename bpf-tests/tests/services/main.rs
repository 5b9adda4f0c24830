//! Services beside Towpath: every case of service NAT with the rules of kube-proxy, by iptables' two
//! ways into the kernel, by nftables, and by the real kube-proxy.

#![expect(
    clippy::unwrap_used,
    reason = "a test ends where something unexpected happens"
)]

mod api_server;
mod asked;
mod cases;
mod iptables;
mod kube_proxy;
mod model;
mod nftables;
mod rules;
mod scene;
mod table;

use cases::Case;
use rules::Kind;
use scene::Scene;
use table::Column;

fn everything(kind: Kind) {
    let scene = Scene::new(kind).unwrap();
    let mut column = Column::new(kind);
    for case in Case::ALL.into_iter().chain(Case::BESIDE) {
        column.row(
            &case.name(),
            |_, transport| case.without(transport),
            |family, transport| {
                for asked in case.asked(&scene, family)? {
                    asked.carry(&scene, transport)?;
                }
                Ok(())
            },
        );
    }
    column.finish();
    scene.fabric.finish().unwrap();
}

#[test]
fn iptables_legacy() {
    everything(Kind::IptablesLegacy);
}

#[test]
fn iptables_nft() {
    everything(Kind::IptablesNft);
}

#[test]
fn nftables() {
    everything(Kind::Nftables);
}

#[test]
fn kube_proxy() {
    everything(Kind::KubeProxy);
}
