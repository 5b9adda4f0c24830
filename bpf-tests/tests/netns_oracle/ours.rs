//! Our programs on a stage's node.

use anyhow::Result;
use aya::programs::tc::SchedClassifierLink;
use datapath_common::abi::{
    Addr, AddressEntry, DestinationClass, EndpointAddress, EniAddresses, EniEntry,
};
use datapath_common::counter::Program;
use datapath_common::masquerade::PoolPolicy;
use loader::bpf::DatapathSettings;
use testkit::testrun::Programs;

use crate::stage::{ENI, NETS, POD_MAC, Stage, VETH, VETH_MAC};

/// MTU of the devices, in bytes.
const MTU: u32 = 1500;

/// Programs that run.
pub(crate) struct Attached {
    pub(crate) programs: Programs,
    _links: Vec<SchedClassifierLink>,
}

/// Loads the programs, tells them of the stage, and attaches them; they run until the value goes.
pub(crate) fn attach(stage: &Stage) -> Result<Attached> {
    stage.node.run(|| {
        let settings = DatapathSettings {
            masquerade_v6: true,
            ..DatapathSettings::default()
        };
        let mut programs = Programs::load_with(&settings)?;
        for net in &NETS {
            programs.put_address(net.pod, endpoint())?;
            programs.put_address(net.node, AddressEntry::translation(0))?;
            let prefix = if net.pod.is_ipv4() { 16 } else { 56 };
            let vpc = ipnet::IpNet::new(net.pod, prefix)?.trunc();
            programs.put_destination(vpc, DestinationClass::VPC)?;
        }
        let [v4, v6] =
            NETS.map(|net| EniAddresses::new(Addr::from(net.gateway), Addr::from(net.node), 0));
        programs.put_eni(0, EniEntry::new(ENI, MTU, v4, v6))?;
        let hooks = [
            (Program::FromEndpoint, "veth-a"),
            (Program::FromNetwork, "eni0"),
            (Program::ToNetwork, "eni0"),
        ];
        let links = hooks.map(|(program, device)| programs.attach(program, device));
        Ok(Attached {
            programs,
            _links: links.into_iter().collect::<Result<_>>()?,
        })
    })
}

/// The entry of an address of the pod.
pub(crate) fn endpoint() -> AddressEntry {
    AddressEntry::endpoint(EndpointAddress {
        eni: 0,
        eni_ifindex: ENI,
        pool: PoolPolicy::Masquerade,
        via_stack: false,
        ifindex: VETH,
        mtu: MTU,
        pod_mac: POD_MAC,
        host_mac: VETH_MAC,
        namespace: None,
    })
}
