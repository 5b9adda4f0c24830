//! Bits of the packet mark that other software uses.

use super::values::MarkMask;

/// Default mark bits of other software. Of Calico's `0xffff0000` these are the ones that it
/// allocates first.
const NEIGHBOURS: [(&str, u32); 7] = [
    ("kube-proxy", 0xc000),
    ("the CNI plugin portmap", 0x2000),
    ("Cilium", 0x0f00),
    ("the Amazon VPC CNI", 0x80),
    ("Calico", 0x00ff_0000),
    ("Tailscale", 0x00ff_0000),
    ("Istio", 0x0fff),
];

/// Warnings about programs whose mark bits overlap with a mask. If one of them is on the node,
/// each would misinterpret the other's marks.
#[must_use]
pub fn mark_neighbours(mask: MarkMask) -> Vec<String> {
    let mask = mask.layout().mask();
    let shared = NEIGHBOURS
        .iter()
        .filter(|(_, bits)| mask & bits != 0)
        .map(|(who, bits)| {
            format!(
                "datapath.mark-mask: {mask:#010x} has bits of {who} ({:#x}); where {who} is on the \
                 node, choose others (the default 0xff000000 has none)",
                mask & bits
            )
        });
    shared.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    fn neighbours(mask: &str) -> Vec<String> {
        let config = Config::parse(&format!("datapath: {{mark-mask: {mask:?}}}")).unwrap();
        mark_neighbours(config.datapath.mark_mask)
    }

    #[test]
    fn each_neighbour_s_bits_are_known() {
        assert_eq!(mark_neighbours(MarkMask::default()), [""; 0]);
        for (mask, who) in [
            (
                "0x0003f000",
                &["kube-proxy", "portmap", "Calico", "Tailscale"][..],
            ),
            ("0x000fc000", &["kube-proxy", "Calico", "Tailscale"]),
            ("0x00003f00", &["portmap", "Cilium", "Istio"]),
            ("0x00000fc0", &["Cilium", "VPC CNI", "Istio"]),
            ("0x0000003f", &["Istio"]),
            ("0xfff00000", &["Calico", "Tailscale"]),
            ("0xfc000000", &[]),
        ] {
            let found = neighbours(mask);
            assert_eq!(found.len(), who.len(), "{mask}: {found:?}");
            for (text, who) in found.iter().zip(who) {
                assert!(text.contains(who), "{mask}: {text}");
                assert!(text.starts_with("datapath.mark-mask: 0x"), "{text}");
            }
        }
    }
}
