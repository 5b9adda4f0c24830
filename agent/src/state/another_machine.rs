//! A document that is another machine's, as after an instance was replaced under the same name.

use std::collections::BTreeMap;

use loader::intent::Node;
use loader::kernel::Link;

/// Warning for a document none of whose MACs is on this node.
pub(crate) fn another_machine(node: &Node, links: &BTreeMap<u32, Link>) -> Option<String> {
    let numbered = node.enis.values().map(|eni| eni.mac);
    let others = node.others.iter().filter_map(|eni| eni.mac);
    let mut macs = numbered.chain(others).peekable();
    macs.peek()?;
    let is_here = |mac| links.values().any(|link| link.mac == Some(mac));
    let instance = node.instance.as_deref();
    let instance = instance.map(|id| format!(", made for instance {id},"));
    (!macs.any(is_here)).then(|| {
        format!(
            "none of the MACs in the document of {}{} is on this node: it is another machine's, maybe \
             that of an earlier instance of this name",
            node.name,
            instance.unwrap_or_default()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use loader::kernel::fixture;

    #[test]
    fn a_document_is_another_machines_when_none_of_its_macs_is_here() {
        let mut node = fixture::intent().node;
        let mut links = fixture::host().links;
        assert_eq!(another_machine(&node, &links), None);
        for index in [fixture::ETH0 + 1, fixture::ETH0 + 2] {
            links.remove(&index);
            assert_eq!(another_machine(&node, &links), None);
        }
        links.remove(&fixture::ETH0);
        let said = another_machine(&node, &links).unwrap();
        assert!(said.contains("another machine's"), "{said}");
        node.instance = Some("i-0old".to_owned());
        let said = another_machine(&node, &links).unwrap();
        assert!(said.contains("made for instance i-0old, is on"), "{said}");
        node.enis.clear();
        assert_eq!(another_machine(&node, &links), None);
    }
}
