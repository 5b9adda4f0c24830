//! The addresses that a cluster's service proxy translates on every node, by the cluster's objects.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::Value;

/// The services that kube-proxy handles, as a label selector (`pkg/proxy/apis/well_known_labels.go`
/// and `cmd/kube-proxy/app/server.go` of Kubernetes).
pub const SELECTOR: &str =
    "!service.kubernetes.io/service-proxy-name,!service.kubernetes.io/headless";

/// The external and load balancer addresses of a Service, which kube-proxy translates in addition
/// to its cluster addresses. Other than unicast addresses are left out.
#[must_use]
pub fn addresses(service: &Value) -> BTreeSet<IpAddr> {
    let spec = &service["spec"];
    let cluster_ip = spec["clusterIP"].as_str().unwrap_or_default();
    // kube-proxy takes neither (`ShouldSkipService` in `pkg/proxy/util/utils.go`).
    if spec["type"] == "ExternalName" || cluster_ip == "None" {
        return BTreeSet::new();
    }
    let external = items(&spec["externalIPs"]).filter_map(Value::as_str);
    let of_balancers = items(&service["status"]["loadBalancer"]["ingress"])
        // Such a load balancer wants to see the packets itself (KEP-1860).
        .filter(|ingress| ingress["ipMode"] != "Proxy")
        .filter_map(|ingress| ingress["ip"].as_str());
    let all = external.chain(of_balancers);
    all.filter_map(|text| text.parse().ok())
        .filter(|address: &IpAddr| {
            !address.is_unspecified() && !address.is_loopback() && !address.is_multicast()
        })
        .collect()
}

/// The CIDRs of a `ServiceCIDR`. One that cannot be read, or is all of a family, is left out.
#[must_use]
pub fn cidrs(object: &Value) -> BTreeSet<IpNet> {
    let texts = items(&object["spec"]["cidrs"]).filter_map(Value::as_str);
    texts
        .filter_map(|text| text.parse::<IpNet>().ok())
        .filter(|net| net.prefix_len() > 0)
        .map(|net| net.trunc())
        .collect()
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn texts(service: &Value) -> Vec<String> {
        addresses(service).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn external_and_load_balancer_addresses_are_those_that_kube_proxy_translates() {
        let mut service = json!({
            "spec": {
                "type": "LoadBalancer", "clusterIP": "10.96.0.9",
                "externalIPs": ["198.51.100.7", "2001:db8::7", "127.0.0.1", "nonsense", "224.0.0.1"]
            },
            "status": {"loadBalancer": {"ingress": [
                {"ip": "203.0.113.1"}, {"ip": "203.0.113.2", "ipMode": "VIP"},
                {"ip": "203.0.113.3", "ipMode": "Proxy"}, {"hostname": "lb.example"}
            ]}}
        });
        let all = ["198.51.100.7", "203.0.113.1", "203.0.113.2", "2001:db8::7"];
        assert_eq!(texts(&service), all);
        service["spec"]["clusterIP"] = json!("None");
        assert!(texts(&service).is_empty());
        service["spec"]["clusterIP"] = json!("10.96.0.9");
        service["spec"]["type"] = json!("ExternalName");
        assert!(texts(&service).is_empty());
        assert!(texts(&json!({"spec": null, "status": []})).is_empty());
    }

    #[test]
    fn cidrs_are_those_of_the_object() {
        let of = |list: &Value| -> Vec<String> {
            let nets = cidrs(&json!({"spec": {"cidrs": list}}));
            nets.iter().map(ToString::to_string).collect()
        };
        assert_eq!(
            of(&json!(["10.96.0.0/12", "fd00:96::/112"])),
            ["10.96.0.0/12", "fd00:96::/112"]
        );
        assert_eq!(
            of(&json!(["10.96.0.1/12", "0.0.0.0/0", 7])),
            ["10.96.0.0/12"]
        );
        assert!(of(&json!(null)).is_empty());
    }
}
