//! Ways around translation that the kernel opens.

use datapath_common::counter::Program;
use datapath_common::outcome::Verdict;
use testkit::packet::Body;

use crate::case::{Case, Expect, on};
use crate::world::*;

const UDP: Body = Body::Udp(100);

/// The stack reassembles a pod's IPv6 fragments for netfilter and fragments the packet again. The
/// new fragments have the packet's mark, but no device that received them.
#[test]
fn a_pods_packet_that_has_lost_its_device_is_translated_still() {
    let mut programs = node();
    for net in [V4, V6] {
        // 50,000 is one of our ports, 1 none; both ways through the host's packets are tried.
        for port in [50_000, 1] {
            let frame = from_a(&net, net.outside, UDP).ports(port, 53);
            let case = |device, mark, expect| {
                let name = format!("{} from {port} without a device", net.family());
                let mut case =
                    Case::new(Program::ToNetwork, name, on(device, frame.bytes()), expect);
                case.input.ingress_ifindex = 0;
                case.input.mark = mark;
                case
            };
            let mapped =
                datapath_common::ports::Ports::DEFAULT.candidate(net.a.into(), port, false);
            let translated = frame.clone().from(net.snat[1], mapped).bytes();
            let expect = Expect::Rewritten(Verdict::CarriedTranslated, translated, marked(1));
            case(ENI_1, marked(1), expect).check(&mut programs);
        }
    }
}
