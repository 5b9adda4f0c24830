//! Services with Towpath: every case of service NAT with the rules of kube-proxy, by iptables' two
//! backends, by nftables, and by the real kube-proxy.

#![expect(
    clippy::unwrap_used,
    reason = "a test ends where something unexpected happens"
)]

mod cases;
mod collision;
mod external;
mod iptables;
mod kube_proxy;
mod lasting;
mod model;
mod nftables;
mod request;
mod rules;
mod scene;
mod sieve;
mod special;
mod table;

use std::cell::RefCell;

use cases::Case;
use ipam::Family;
use lasting::{Event, Lasting};
use model::Transport;
use rules::Kind;
use scene::{Scene, Setting};
use table::Column;
use testkit::kubernetes::ProxyMode;

/// Why a row is about one transport only.
fn only(
    wanted: Transport,
    reason: &'static str,
) -> impl Fn(Family, Transport) -> Option<&'static str> {
    move |_, transport| (transport != wanted).then_some(reason)
}

/// A case's questions, each by each transport.
fn ask(column: &mut Column, scene: &Scene, case: Case) {
    column.row(
        &case.name(),
        |_, transport| case.without(transport),
        |family, transport| {
            let requests = case.requests(scene, family)?;
            requests
                .iter()
                .try_for_each(|request| request.carry(scene, transport))
        },
    );
}

/// The kernel's and firewalld's filters of sources.
fn through_sieves(column: &mut Column, scene: &Scene, kind: Kind) {
    for all in [0, 1, 2] {
        sieve::set_rp_filter(scene, kind, all).unwrap();
        column.row(
            &format!("rp_filter {all}"),
            |family, _| (family == Family::V6).then_some("IPv4 only"),
            |family, transport| sieve::pass(scene, family, transport),
        );
    }
    sieve::firewalld(scene, true).unwrap();
    column.row(
        "firewalld's strict rpfilter",
        |family, _| (family == Family::V4).then_some("IPv6 only"),
        |family, transport| sieve::pass(scene, family, transport),
    );
    sieve::firewalld(scene, false).unwrap();
}

/// Connections that stay open during each event.
fn across_events(column: &mut Column, scene: &mut Scene) {
    let open = RefCell::new(Lasting::open(scene).unwrap());
    for event in Event::ALL {
        event.happen(&mut scene.fabric).unwrap();
        for case in Case::ALL.into_iter().chain(Case::BESIDE) {
            column.row(
                &format!("{}, {}", case.name(), event.name()),
                |_, transport| match transport {
                    Transport::Tcp => case.without(transport),
                    Transport::Udp => Some("no connection"),
                },
                |family, _| open.borrow_mut().speak(scene, case, family),
            );
        }
    }
}

/// Every case with one backend of rules, on one path.
fn everything(setting: Setting) {
    let mut scene = Scene::new(setting).unwrap();
    let mut column = Column::new(setting);
    let every = |_: Family, _: Transport| None;
    for case in Case::ALL.into_iter().chain(Case::BESIDE) {
        ask(&mut column, &scene, case);
    }
    column.row("no backends: refused", every, |f, t| {
        special::refused(&scene, f, t)
    });
    column.row("several backends: by chance", every, |f, t| {
        special::spread(&scene, f, t)
    });
    column.row("session affinity", every, |f, t| {
        special::sticky(&scene, f, t)
    });
    column.row("narrow link beyond the VPC", every, |f, t| {
        special::narrow(&scene, f, t)
    });
    column.row(
        "TTL that runs out",
        only(Transport::Udp, "TCP gets no error"),
        |family, _| special::expired(&scene, family),
    );
    through_sieves(&mut column, &scene, setting.kind);

    across_events(&mut column, &mut scene);

    scene.allow_untranslated().unwrap();
    scene.set_metadata("own").unwrap();
    ask(&mut column, &scene, Case::MetadataOwn);
    scene.set_metadata("block").unwrap();
    column.row(
        "instance metadata: block",
        only(Transport::Tcp, "HTTP only"),
        |family, _| special::metadata_blocked(&scene, family),
    );
    let invalid = special::nothing_invalid(&scene);
    let collided = collision::happens(&scene, setting.path);
    column.finish();
    invalid.unwrap();
    collided.unwrap();
    scene.fabric.finish().unwrap();
}

#[test]
fn iptables_legacy() {
    everything(Setting::direct(Kind::IptablesLegacy));
}

#[test]
fn iptables_nft() {
    everything(Setting::direct(Kind::IptablesNft));
}

#[test]
fn nftables() {
    everything(Setting::direct(Kind::Nftables));
}

#[test]
fn kube_proxy_iptables() {
    everything(Setting::direct(Kind::KubeProxy(ProxyMode::Iptables)));
}

#[test]
fn kube_proxy_nftables() {
    everything(Setting::direct(Kind::KubeProxy(ProxyMode::Nftables)));
}

#[test]
fn kube_proxy_iptables_serves_the_agents_own_addresses() {
    external::is_served(ProxyMode::Iptables).unwrap();
}

#[test]
fn kube_proxy_nftables_serves_the_agents_own_addresses() {
    external::is_served(ProxyMode::Nftables).unwrap();
}

#[test]
fn path_stack() {
    everything(Setting::STACK);
}
