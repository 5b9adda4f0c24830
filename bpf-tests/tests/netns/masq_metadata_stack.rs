//! `metadata: stack`: rules of the host decide on what pods send to the instance metadata service.

use ipam::Family;
use serde_json::json;
use std::net::SocketAddr;
use testkit::fabric::traffic::{Echo, Session};
use testkit::fabric::world::Site;

use crate::masq::{masquerade, scene, site, snat};

#[test]
fn what_rules_redirect_reaches_the_agent_what_they_drop_nobody_and_the_rest_the_service() {
    let (fabric, pods) = scene(masquerade(&json!({"metadata": "stack"})));
    let world = fabric.world().unwrap();
    world.set_metadata_ttl(3).unwrap();
    for (pod, family) in pods.iter().flat_map(|pod| Family::ALL.map(|f| (pod, f))) {
        let primary = snat(&fabric, 0, family);
        fabric
            .check_seen(pod.at(family), Site::Metadata, primary, 0)
            .unwrap();
    }
    let nft = |line: &str| fabric.node.run(&format!("nft {line}")).unwrap();
    nft("add table inet iam");
    nft("add chain inet iam pre { type nat hook prerouting priority dstnat ; }");
    nft("add chain inet iam forward { type filter hook forward priority filter ; }");
    for family in Family::ALL {
        let agent = Echo::telling(fabric.node_at(family).unwrap(), 0).unwrap();
        let protocol = match family {
            Family::V4 => "ip",
            Family::V6 => "ip6",
        };
        let frontend = SocketAddr::new(site(&fabric, Site::Metadata, family).address, 80);
        nft(&format!(
            "add rule inet iam pre iifname \"tow*\" {protocol} daddr {} tcp dport 80 dnat {protocol} to {}",
            frontend.ip(),
            agent.address()
        ));
        for pod in &pods {
            let mut session = Session::open(pod.at(family), 0, frontend).unwrap();
            session.exchange().unwrap();
            assert_eq!(
                session.seen().ip(),
                pod.address(family),
                "the agent sees the pod"
            );
        }
        nft(&format!(
            "add rule inet iam forward iifname \"tow*\" {protocol} daddr {} drop",
            frontend.ip()
        ));
        for pod in &pods {
            let frontend = SocketAddr::new(frontend.ip(), 81);
            assert!(
                Session::open(pod.at(family), 0, frontend).is_err(),
                "{family:?}"
            );
        }
    }
    fabric.finish().unwrap();
}
