//! Rules of netfilter that packets of the direct path do not meet.

use api::ids::EndpointId;

use super::actor::Actor;
use super::kernel::Host;
use crate::bpf::Path;
use crate::bypassed::Subjects;

impl<K: Host> Actor<K> {
    /// Those that name pods, their devices or the metadata service, or clamp the MSS.
    pub(super) fn bypassed_rules(&self) -> Vec<String> {
        let kernel = self.reconciler.kernel();
        let is_direct = kernel.datapath_settings().path != Path::Stack;
        let Some(facts) = kernel.facts().filter(|_| is_direct) else {
            return Vec::new();
        };
        let endpoints = self.pass.view.endpoints.values();
        let links = endpoints.filter_map(|endpoint| facts.links.get(&endpoint.ifindex?));
        let node = &self.intent.node;
        let of_enis = node
            .enis
            .values()
            .flat_map(|eni| eni.blocks.iter().copied());
        let plain = self.intent.plain_blocks().map(|(net, _)| net);
        let prefix = self.intent.settings.device_prefix.iter().cloned();
        let addresses = self.intent.endpoints.values();
        self.bypassed.named(&Subjects {
            prefixes: prefix
                .chain([EndpointId::DEVICE_PREFIX.to_owned()])
                .collect(),
            devices: links.map(|link| link.kernel_name().to_owned()).collect(),
            addresses: addresses.flat_map(|one| &one.addresses).copied().collect(),
            blocks: of_enis.chain(plain).collect(),
        })
    }
}
