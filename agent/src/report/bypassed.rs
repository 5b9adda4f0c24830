//! Rules of netfilter and filters of tc that packets of the direct path do not meet.

use api::ids::EndpointId;
use api::types::{Direction, ForeignProgram, Position};
use loader::bpf::DatapathMode;
use loader::constants;
use loader::netfilter::bypassed::Subjects;

use crate::actor::Actor;
use crate::host::kernel::Host;

impl<K: Host> Actor<K> {
    /// Rules that name pods, their devices or the metadata service, or clamp the MSS, and the
    /// filters that run after our program.
    pub(crate) fn bypassed_rules(&self) -> Vec<String> {
        let kernel = self.reconciler.kernel();
        let is_direct = kernel.datapath_settings().path != DatapathMode::Stack;
        let Some(facts) = kernel.facts().filter(|_| is_direct) else {
            return Vec::new();
        };
        let endpoints = self.passes.last.view.endpoints.values();
        let links = endpoints.filter_map(|endpoint| facts.links.get(&endpoint.ifindex?));
        let node = &self.intent.node;
        let of_enis = node
            .enis
            .values()
            .flat_map(|eni| eni.blocks.iter().copied());
        let plain = self.intent.plain_blocks().map(|(net, _)| net);
        let prefix = self.intent.settings.device_prefix.iter().cloned();
        let addresses = self.intent.endpoints.values();
        let enis = self.eni_devices();
        let enis = enis.iter().filter_map(|ifindex| facts.links.get(ifindex));
        let mut rules = self.observers.bypassed.named(&Subjects {
            prefixes: prefix
                .chain([EndpointId::DEVICE_PREFIX.to_owned()])
                .collect(),
            indexes: links.clone().map(|link| link.ifindex).collect(),
            devices: links.map(|link| link.kernel_name().to_owned()).collect(),
            enis: enis.map(|link| link.kernel_name().to_owned()).collect(),
            addresses: addresses.flat_map(|one| &one.addresses).copied().collect(),
            blocks: of_enis.chain(plain).collect(),
        });
        rules.extend(self.filters_passed());
        rules
    }

    /// Filters at the ingress of ENIs that pods' packets bypass because of our programs. Those of
    /// pods' devices are not bypassed: such a pod's packets take the host's stack.
    fn filters_passed(&self) -> Vec<String> {
        let kernel = self.reconciler.kernel();
        let programs = kernel.foreign_programs(&self.eni_devices());
        let programs = programs.unwrap_or_else(|error| {
            tracing::warn!("cannot read the filters that pods' packets bypass: {error:#}");
            Vec::new()
        });
        programs.iter().filter_map(filter_passed).collect()
    }
}

/// A filter or program as text, if it runs after ours.
fn filter_passed(program: &ForeignProgram) -> Option<String> {
    if program.direction != Direction::Ingress || program.position != Position::After {
        return None;
    }
    let name = program.name.as_ref().unwrap_or(&program.kind);
    let priority = program.priority;
    let priority = priority.map(|priority| format!(", priority {priority}"));
    Some(format!(
        "tc {} ingress, {name}{}, comes behind our program: packets of the direct path do not meet it; \
         attach it before ours (a TCX program, or a filter of clsact with a priority below {}), or set \
         datapath.path to stack",
        program.device,
        priority.unwrap_or_default(),
        constants::TC_PRIORITY
    ))
}
