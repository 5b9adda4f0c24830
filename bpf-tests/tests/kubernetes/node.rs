//! A whole node: kubelet, containerd and kube-proxy are real, and the agent is the pod of the
//! `DaemonSet`, of the image, with the configuration, the mounts and the rights that the manifests give it.

use std::net::IpAddr;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use bpf_tests::cri::{Bed, IMAGE};
use bpf_tests::fabric::document::{NODE_NAME, document};
use bpf_tests::fabric::eventually::{check, eventually};
use bpf_tests::fabric::layout::Host;
use bpf_tests::fabric::traffic::{Protocol, Web};
use bpf_tests::fabric::{Fabric, Netns, Place, Spec};
use bpf_tests::kubernetes::{ApiServer, KubeProxy, Kubectl, Kubelet, deploy};
use serde_json::{Value, json};
use tempfile::TempDir;
use towpath::intent::Family;
use towpath::types::EndpointId;

use crate::cluster::{ACCOUNT, NODE, SOON};

/// Names the archive of the agent's image.
const IMAGE_VARIABLE: &str = "TOWPATH_IMAGE";
/// A service's address, of the server's range.
const SERVICE: &str = "10.96.7.7";
/// `CAP_SYS_RESOURCE` (include/uapi/linux/capability.h).
const SYS_RESOURCE: u32 = 24;
/// What the test has other than the manifests: pods are not to wait, and services are told.
const SETTINGS: &str = "services:\n  cidrs: [10.96.0.0/16]\n";

struct Node {
    kubelet: Kubelet,
    proxy: KubeProxy,
    bed: Bed,
    server: ApiServer,
    fabric: Fabric,
    folder: TempDir,
}

/// A pod that runs.
struct Running {
    name: String,
    netns: Netns,
    address: IpAddr,
}

impl Running {
    fn at(&self) -> Place<'_> {
        Place {
            netns: &self.netns,
            address: self.address,
        }
    }
}

impl Node {
    /// Everything but the agent.
    fn create() -> Result<Self> {
        let fabric = Fabric::create(&Spec::default())?;
        let folder = tempfile::tempdir()?;
        let address = fabric.node_at(Family::V4)?.address;
        let server = ApiServer::start_at(&fabric.node, folder.path(), address)?;
        server.make_crds()?;
        // What a controller makes in every namespace.
        let certificate = std::fs::read_to_string(server.certificate())?;
        server.apply(&[json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "kube-root-ca.crt", "namespace": ACCOUNT.0},
            "data": {"ca.crt": certificate}
        })])?;
        let bed = Bed::start_node(&fabric)?;
        let archive = std::env::var_os(IMAGE_VARIABLE).with_context(|| {
            format!("{IMAGE_VARIABLE} names no image: `cargo xtask test api` builds it")
        })?;
        bed.import(&PathBuf::from(archive))?;
        let kubelet = Kubelet::start(&fabric, &bed, &server)?;
        let proxy = KubeProxy::start(&fabric, &server.admin_kubeconfig()?)?;
        Ok(Self {
            kubelet,
            proxy,
            bed,
            server,
            fabric,
            folder,
        })
    }

    /// Applies a kustomization of the manifests, with the test's own settings, and makes the pod that
    /// its `DaemonSet`'s controller would make on this node.
    fn deploy(&self, kustomization: &str, name: &str) -> Result<()> {
        let kubectl = Kubectl::new(&self.server, &self.fabric.node, self.folder.path())?;
        let mut objects = kubectl.build(&deploy().join("kubernetes").join(kustomization))?;
        for object in &mut objects {
            if object["kind"] == "ConfigMap" {
                let text = object["data"]["config.yaml"]
                    .as_str()
                    .context("it is a text")?;
                let text = text.replace(
                    "  enabled: true\n",
                    "  enabled: true\n  update-interval: 1\n",
                );
                object["data"]["config.yaml"] = json!(format!("{text}\n{SETTINGS}"));
            }
        }
        self.server.apply(&objects)?;
        let daemonset = objects.iter().find(|object| object["kind"] == "DaemonSet");
        let mut pod = daemonset.context("a DaemonSet")?["spec"]["template"].clone();
        pod["apiVersion"] = json!("v1");
        pod["kind"] = json!("Pod");
        pod["metadata"]["name"] = json!(name);
        pod["spec"]["nodeName"] = json!(NODE_NAME);
        leave_out_what_nobody_has(&mut pod)?;
        // What admission does on servers of today.
        let volumes = pod["spec"]["volumes"].as_array_mut().context("volumes")?;
        volumes.push(json!({"name": "kube-api-access", "projected": {"sources": [
            {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": [
                {"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}
            ]}}
        ]}}));
        let mount = json!({
            "name": "kube-api-access", "readOnly": true,
            "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"
        });
        for container in pod["spec"]["containers"]
            .as_array_mut()
            .context("containers")?
        {
            container["volumeMounts"]
                .as_array_mut()
                .context("mounts")?
                .push(mount.clone());
        }
        self.make("kube-system", &pod)
    }

    fn make(&self, namespace: &str, pod: &Value) -> Result<()> {
        let path = format!("/api/v1/namespaces/{namespace}/pods");
        self.server.admin().post(&path, pod)?.expect(201).map(drop)
    }

    /// Runs a pod, and waits until its container does.
    fn run(&self, namespace: &str, name: &str) -> Result<Running> {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {
                "nodeName": NODE_NAME, "tolerations": [{"operator": "Exists"}],
                "terminationGracePeriodSeconds": 0, "enableServiceLinks": false,
                "containers": [{"name": "one", "image": IMAGE, "imagePullPolicy": "Never"}]
            }
        });
        self.make(namespace, &pod)?;
        let status = self.pod_is(namespace, name, "it runs", |status| {
            status["phase"] == "Running" && status["podIP"].is_string()
        })?;
        let (_, named) = self.bed.cri.pod_named(namespace, name)?;
        Ok(Running {
            name: format!("{namespace}/{name}"),
            netns: Netns::foreign(&self.bed.namespace(&named))?,
            address: status["podIP"].as_str().unwrap_or_default().parse()?,
        })
    }

    fn pod_is(
        &self,
        namespace: &str,
        name: &str,
        what: &str,
        is: impl Fn(&Value) -> bool,
    ) -> Result<Value> {
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
        let look = || {
            let pod = self.server.admin().get(&path)?.expect(200)?;
            check(is(&pod["status"]), || pod["status"].to_string())?;
            Ok(pod["status"].clone())
        };
        let log = || self.logs();
        let what = format!("{namespace}/{name}: {what}");
        Ok(eventually(SOON, &what, look).with_context(log)?.0)
    }

    /// Deletes a pod at once, as `kubectl delete --force` does, or with the time that it is given.
    fn delete(&self, namespace: &str, name: &str, seconds: u32) -> Result<()> {
        let path =
            format!("/api/v1/namespaces/{namespace}/pods/{name}?gracePeriodSeconds={seconds}");
        self.server.admin().delete(&path)?.expect(200).map(drop)
    }

    /// Waits until the node is ready, or not, for a reason that has this in it.
    fn is_ready(&self, ready: bool, reason: &str) -> Result<()> {
        let what = format!("the node is ready: {ready}");
        let look = || {
            let condition = self.condition()?;
            let said = condition["message"].as_str().unwrap_or_default();
            let status = if ready { "True" } else { "False" };
            check(
                condition["status"] == status && said.contains(reason),
                || condition.to_string(),
            )
        };
        let log = || self.logs();
        eventually(SOON, &what, look).with_context(log).map(drop)
    }

    fn condition(&self) -> Result<Value> {
        let node = self
            .server
            .admin()
            .get(&format!("/api/v1/nodes/{NODE_NAME}"))?;
        let node = node.expect(200)?;
        let conditions = node["status"]["conditions"].as_array();
        let found = conditions
            .into_iter()
            .flatten()
            .find(|condition| condition["type"] == "Ready");
        Ok(found.context("the node has no condition yet")?.clone())
    }

    /// Makes a namespace of the default pool, and one whose annotation names a pool of ENI 1.
    fn make_namespaces(&self) {
        let subnet = format!("subnet-0fab{:013x}", 1);
        let namespace = |name: &str, annotations: Value| {
            json!({
                "apiVersion": "v1", "kind": "Namespace",
                "metadata": {"name": name, "annotations": annotations}
            })
        };
        let blue = json!({"ipam.cilium.io/ip-pool": "blue"});
        self.server
            .apply(&[namespace("plain", json!({})), namespace("blue", blue)])
            .unwrap();
        let pool = json!({
            "apiVersion": "cilium.io/v2alpha1", "kind": "CiliumPodIPPool",
            "metadata": {"name": "blue", "annotations": {"ipam.towpath.dev/subnet-ids": subnet}},
            "spec": {"ipv4": {"cidrs": ["10.0.0.0/16"], "maskSize": 32}}
        });
        let pools = "/apis/cilium.io/v2alpha1/ciliumpodippools";
        self.server
            .admin()
            .post(pools, &pool)
            .unwrap()
            .expect(201)
            .unwrap();
    }

    /// The ENI that a pod's address is of.
    fn eni_of(&self, pod: &Running) -> u8 {
        let mut enis = self.fabric.enis.iter();
        let owner = enis.find(|eni| eni.blocks.iter().any(|block| block.contains(&pod.address)));
        owner.unwrap().number
    }

    /// Deletes pods, and waits until nothing of them is left.
    fn leaves_nothing_of(&self, pods: [&Running; 3]) {
        for pod in pods {
            let (namespace, name) = pod.name.split_once('/').unwrap();
            self.delete(namespace, name, 0).unwrap();
        }
        let nothing = || {
            let endpoints = self.fabric.agent.ask("GET", "/v1/endpoints", None)?;
            check(endpoints == json!([]), || endpoints.to_string())?;
            let devices = self.fabric.node.ip_json("link show type veth")?;
            let names = devices.as_array().into_iter().flatten();
            let ours = names.filter(|device| {
                device["ifname"]
                    .as_str()
                    .is_some_and(|name| name.starts_with(EndpointId::DEVICE_PREFIX))
            });
            let ours: Vec<_> = ours.collect();
            check(ours.is_empty(), || format!("{ours:?}"))
        };
        eventually(SOON, "nothing is left of the pods", nothing)
            .with_context(|| self.logs())
            .unwrap();
    }

    fn has_plugin(&self) -> bool {
        self.bed.networks().join("10-towpath.conflist").exists()
    }

    /// What everything wrote: the end of it.
    fn logs(&self) -> String {
        let pods = self.bed.logs_of_pods();
        let logs = [pods, self.kubelet.log(), self.proxy.log(), self.bed.log()];
        let end = |log: &String| {
            let lines: Vec<_> = log.lines().collect();
            lines[lines.len().saturating_sub(60)..].join("\n")
        };
        logs.iter().map(end).collect::<Vec<_>>().join("\n----\n")
    }

    /// Has kube-proxy lead a service to a pod's web server.
    fn serve(&self, web: &Web, pod: &Running) -> Result<()> {
        let port: u16 = web.url("").rsplit(':').next().unwrap_or_default().parse()?;
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
            "spec": {"clusterIP": SERVICE, "ports": [{"port": 80, "targetPort": port}]}
        });
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1beta1", "kind": "EndpointSlice",
            "metadata": {"name": "web", "labels": {"kubernetes.io/service-name": "web"}},
            "addressType": "IPv4", "ports": [{"name": "", "port": port}],
            "endpoints": [{"addresses": [pod.address], "conditions": {"ready": true}}]
        });
        let admin = self.server.admin();
        admin
            .post("/api/v1/namespaces/plain/services", &service)?
            .expect(201)?;
        let slices = "/apis/discovery.k8s.io/v1beta1/namespaces/plain/endpointslices";
        admin.post(slices, &slice)?.expect(201).map(drop)
    }
}

/// Takes `SYS_RESOURCE` from a pod's containers where the machine itself does not have it, as in some
/// virtual machines: only Linux before 5.11 needs it.
fn leave_out_what_nobody_has(pod: &mut Value) -> Result<()> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let bounding = status.lines().find_map(|line| line.strip_prefix("CapBnd:"));
    let bounding = u64::from_str_radix(bounding.context("a bounding set")?.trim(), 16)?;
    if bounding & (1 << SYS_RESOURCE) != 0 {
        return Ok(());
    }
    let containers = pod["spec"]["containers"].as_array_mut();
    for container in containers.into_iter().flatten() {
        let added = container.pointer_mut("/securityContext/capabilities/add");
        if let Some(added) = added.and_then(Value::as_array_mut) {
            added.retain(|capability| capability != "SYS_RESOURCE");
        }
    }
    Ok(())
}

/// A pod reaches a service, and is answered by what is behind it.
fn asks_service(pod: &Running) {
    let url = format!("http://{SERVICE}/");
    let ask = || {
        let answer = pod
            .netns
            .run(&format!("curl --silent --show-error --max-time 5 {url}"))?;
        check(answer.starts_with(&pod.address.to_string()), || {
            answer.clone()
        })
    };
    eventually(SOON, &format!("{} reaches the service", pod.name), ask).unwrap();
}

#[test]
fn the_manifests_make_a_node_ready_and_its_pods_have_a_network() {
    let node = Node::create().unwrap();
    node.is_ready(false, "cni").unwrap();

    // The agent runs and waits for ENIs; so does the node.
    node.deploy("base", "towpath-1").unwrap();
    let made = || node.server.admin().get(NODE)?.expect(200);
    eventually(SOON, "the agent makes its CiliumNode", made)
        .with_context(|| node.logs())
        .unwrap();
    node.is_ready(false, "cni").unwrap();
    assert!(!node.has_plugin());
    let status = document(&node.fabric.enis)["status"].clone();
    let path = format!("{NODE}/status");
    let operated = node.server.admin().merge(&path, &json!({"status": status}));
    operated.unwrap().expect(200).unwrap();
    node.is_ready(true, "").unwrap();
    assert!(node.has_plugin());
    node.pod_is("kube-system", "towpath-1", "it is ready", |status| {
        let conditions = status["conditions"].as_array().into_iter().flatten();
        conditions
            .filter(|condition| condition["type"] == "Ready")
            .any(|condition| condition["status"] == "True")
    })
    .unwrap();

    node.make_namespaces();
    let plain = node.run("plain", "one").unwrap();
    let other = node.run("plain", "two").unwrap();
    let blue = node.run("blue", "three").unwrap();
    assert_eq!(node.eni_of(&plain), 0);
    assert_eq!(node.eni_of(&blue), 1);

    let web = Web::start(other.at()).unwrap();
    node.serve(&web, &other).unwrap();
    let traffic = || {
        let peer = node.fabric.host(Host::Peer, Family::V4);
        for protocol in Protocol::ALL {
            for pod in [&plain, &blue] {
                protocol.exchange(pod.at(), peer).unwrap();
                protocol.exchange(pod.at(), other.at()).unwrap();
            }
        }
        asks_service(&plain);
        asks_service(&blue);
    };
    traffic();

    // The agent is replaced: the node stays ready, pods keep their network meanwhile.
    node.delete("kube-system", "towpath-1", 5).unwrap();
    let gone = || {
        let answer = node.fabric.agent.request("GET", "/v1/ready", None);
        check(answer.is_err(), || format!("{answer:?}"))
    };
    eventually(SOON, "the agent ends", gone).unwrap();
    traffic();
    assert!(node.has_plugin());
    node.is_ready(true, "").unwrap();
    node.deploy("overlays/removal", "towpath-2").unwrap();
    let back = || {
        let answer = node.fabric.agent.request("GET", "/v1/ready", None)?;
        check(answer.0 == 200, || answer.1.to_string())
    };
    eventually(SOON, "the next agent is ready", back)
        .with_context(|| node.logs())
        .unwrap();
    traffic();

    drop(web);
    node.leaves_nothing_of([&plain, &other, &blue]);

    // A node that Towpath leaves is not ready any more.
    node.delete("kube-system", "towpath-2", 5).unwrap();
    node.is_ready(false, "cni").unwrap();
    assert!(!node.has_plugin());
    let Node {
        fabric,
        kubelet,
        proxy,
        bed,
        server,
        ..
    } = node;
    drop((kubelet, proxy, bed, server));
    fabric.finish().unwrap();
}
