//! A client of a runtime's CRI: calls that wait, and bursts of them.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use k8s_cri::v1;
use k8s_cri::v1::image_service_client::ImageServiceClient;
use k8s_cri::v1::runtime_service_client::RuntimeServiceClient;
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status};

use super::IMAGE;
use super::sandbox::{PodRequest, Sandbox};

/// Deadline of a call: a hundred pods at once share two cores.
const CALL: Duration = Duration::from_mins(3);

/// Result of a command in a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exec {
    /// Exit code.
    pub code: i32,
    /// Its output, followed by its errors.
    pub text: String,
}

/// A client of one runtime.
#[derive(Debug)]
pub struct Cri {
    executor: Runtime,
    channel: Channel,
    cgroup: String,
}

impl Cri {
    /// A client of the runtime at a socket; it connects with its first call. Pods' processes go below
    /// a cgroup.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn new(socket: &Path, cgroup: &str) -> Result<Self> {
        let executor = Builder::new_current_thread().enable_all().build()?;
        let address = format!("unix://{}", socket.display());
        let endpoint = Endpoint::try_from(address)?.timeout(CALL);
        let channel = executor.block_on(async { endpoint.connect_lazy() });
        Ok(Self {
            executor,
            channel,
            cgroup: cgroup.to_owned(),
        })
    }

    fn pods(&self) -> RuntimeServiceClient<Channel> {
        RuntimeServiceClient::new(self.channel.clone())
    }

    /// Makes calls at once, and returns their answers in order, each with its duration.
    fn all<T, F>(&self, calls: impl IntoIterator<Item = F>) -> Vec<Result<(T, Duration)>>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        self.executor.block_on(async {
            let mut tasks = JoinSet::new();
            for (place, call) in calls.into_iter().enumerate() {
                tasks.spawn(async move {
                    let start = Instant::now();
                    (place, call.await.map(|value| (value, start.elapsed())))
                });
            }
            let mut answers = Vec::new();
            while let Some(answer) = tasks.join_next().await {
                match answer {
                    Ok(answer) => answers.push(answer),
                    Err(error) => answers.push((usize::MAX, Err(error.into()))),
                }
            }
            answers.sort_by_key(|(place, _)| *place);
            answers.into_iter().map(|(_, answer)| answer).collect()
        })
    }

    fn one<T: Send + 'static>(
        &self,
        call: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<(T, Duration)> {
        let mut answers = self.all([call]);
        answers.pop().context("one call has one answer")?
    }

    /// Runs pods, all at once. The answers are in the order of the requests.
    #[must_use]
    pub fn run_pods(&self, requests: &[PodRequest]) -> Vec<Result<Sandbox>> {
        let calls = requests.iter().map(|request| {
            let config = request.config(&self.cgroup);
            run(self.pods(), config, request.handler.clone())
        });
        let answers = self.all(calls);
        answers
            .into_iter()
            .map(|answer| answer.map(|(sandbox, _)| sandbox))
            .collect()
    }

    /// Runs a pod.
    ///
    /// # Errors
    /// When the runtime, or its plugin, refuses.
    pub fn run_pod(&self, request: &PodRequest) -> Result<Sandbox> {
        let mut pods = self.run_pods(std::slice::from_ref(request));
        pods.pop().context("one request has one answer")?
    }

    /// Stops pods, all at once: their network goes. Returns the duration of each stop.
    #[must_use]
    pub fn stop_pods(&self, pods: &[Sandbox]) -> Vec<Result<Duration>> {
        self.stop(pods.iter().map(|pod| pod.id.clone()))
    }

    fn stop(&self, ids: impl Iterator<Item = String>) -> Vec<Result<Duration>> {
        let calls = ids.map(|pod_sandbox_id| {
            let mut client = self.pods();
            async move {
                let request = v1::StopPodSandboxRequest { pod_sandbox_id };
                said(client.stop_pod_sandbox(request)).await
            }
        });
        times(self.all(calls))
    }

    /// Removes pods that are stopped, all at once.
    #[must_use]
    pub fn remove_pods(&self, pods: &[Sandbox]) -> Vec<Result<Duration>> {
        self.remove(pods.iter().map(|pod| pod.id.clone()))
    }

    fn remove(&self, ids: impl Iterator<Item = String>) -> Vec<Result<Duration>> {
        let calls = ids.map(|pod_sandbox_id| {
            let mut client = self.pods();
            async move {
                let request = v1::RemovePodSandboxRequest { pod_sandbox_id };
                said(client.remove_pod_sandbox(request)).await
            }
        });
        times(self.all(calls))
    }

    /// Stops and removes all of the runtime's pods except these, as a kubelet does with the rest of
    /// a pod that did not start.
    ///
    /// # Errors
    /// When the runtime, or its plugin, refuses.
    pub fn keep_only(&self, pods: &[&Sandbox]) -> Result<()> {
        let known = self.known_pods()?.into_iter();
        let others: Vec<_> = known
            .filter(|id| pods.iter().all(|pod| pod.id != *id))
            .collect();
        for answer in self.stop(others.iter().cloned()) {
            answer?;
        }
        for answer in self.remove(others.into_iter()) {
            answer?;
        }
        Ok(())
    }

    /// Starts a container of the bed's image in a pod, and returns its id.
    ///
    /// # Errors
    /// When the runtime refuses.
    pub fn start_container(&self, pod: &Sandbox) -> Result<String> {
        let (mut client, pod) = (self.pods(), pod.clone());
        let call = async move {
            let config = v1::ContainerConfig {
                metadata: Some(v1::ContainerMetadata {
                    name: "main".to_owned(),
                    attempt: 0,
                }),
                image: Some(v1::ImageSpec {
                    image: IMAGE.to_owned(),
                    ..v1::ImageSpec::default()
                }),
                linux: Some(v1::LinuxContainerConfig::default()),
                ..v1::ContainerConfig::default()
            };
            let request = v1::CreateContainerRequest {
                pod_sandbox_id: pod.id,
                config: Some(config),
                sandbox_config: Some(pod.config),
            };
            // Its request is large.
            let answer = Box::pin(said(client.create_container(request))).await?;
            let container_id = answer.container_id;
            let request = v1::StartContainerRequest {
                container_id: container_id.clone(),
            };
            said(client.start_container(request)).await?;
            Ok(container_id)
        };
        Ok(self.one(call)?.0)
    }

    /// Runs a command in a container to its end.
    ///
    /// # Errors
    /// When the runtime refuses; not when the command fails.
    pub fn exec(&self, container: &str, words: &[&str]) -> Result<Exec> {
        let mut client = self.pods();
        let request = v1::ExecSyncRequest {
            container_id: container.to_owned(),
            cmd: words.iter().map(ToString::to_string).collect(),
            timeout: 30,
        };
        let call = async move { said(client.exec_sync(request)).await };
        let answer = self.one(call)?.0;
        let mut text = String::from_utf8_lossy(&answer.stdout).into_owned();
        text.push_str(&String::from_utf8_lossy(&answer.stderr));
        Ok(Exec {
            code: answer.exit_code,
            text,
        })
    }

    /// The ids of all pods of the runtime.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn known_pods(&self) -> Result<Vec<String>> {
        let mut client = self.pods();
        let call = async move {
            let request = v1::ListPodSandboxRequest::default();
            said(client.list_pod_sandbox(request)).await
        };
        let answer = self.one(call)?.0;
        Ok(answer.items.into_iter().map(|pod| pod.id).collect())
    }

    /// The ready pod of a name in a Kubernetes namespace: its id, and its network namespace.
    ///
    /// # Errors
    /// When there is not exactly one, or the runtime does not answer.
    pub fn pod_named(&self, namespace: &str, name: &str) -> Result<(String, PathBuf)> {
        let mut client = self.pods();
        let labels = [
            ("io.kubernetes.pod.namespace", namespace),
            ("io.kubernetes.pod.name", name),
        ];
        let filter = v1::PodSandboxFilter {
            state: Some(v1::PodSandboxStateValue {
                state: v1::PodSandboxState::SandboxReady.into(),
            }),
            label_selector: labels
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
            ..v1::PodSandboxFilter::default()
        };
        let call = async move {
            let request = v1::ListPodSandboxRequest {
                filter: Some(filter),
            };
            let items = said(client.list_pod_sandbox(request)).await?.items;
            let [pod] = items.as_slice() else {
                bail!("{} pods", items.len());
            };
            let request = v1::PodSandboxStatusRequest {
                pod_sandbox_id: pod.id.clone(),
                verbose: true,
            };
            let answer = said(client.pod_sandbox_status(request)).await?;
            Ok((pod.id.clone(), netns_in(&answer)?))
        };
        let found = self.one(call).map(|(found, _)| found);
        found.with_context(|| format!("the runtime's pod {namespace}/{name}"))
    }

    /// True if the runtime reports its network as ready, with the message of that condition.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn network_ready(&self) -> Result<(bool, String)> {
        let mut client = self.pods();
        let call = async move {
            let request = v1::StatusRequest::default();
            said(client.status(request)).await
        };
        let status = self.one(call)?.0.status;
        let conditions = status.unwrap_or_default().conditions;
        let network = conditions
            .into_iter()
            .find(|condition| condition.r#type == "NetworkReady")
            .context("the runtime's status says nothing of its network")?;
        Ok((
            network.status,
            format!("{}: {}", network.reason, network.message),
        ))
    }

    /// Fails unless the runtime has the image.
    pub(super) fn has_image(&self) -> Result<()> {
        let mut client = ImageServiceClient::new(self.channel.clone());
        let call = async move {
            let request = v1::ImageStatusRequest {
                image: Some(v1::ImageSpec {
                    image: IMAGE.to_owned(),
                    ..v1::ImageSpec::default()
                }),
                verbose: false,
            };
            said(client.image_status(request)).await
        };
        let image = self.one(call)?.0.image;
        image.map(drop).context("the runtime has no image")
    }
}

/// The answer of a call, or the runtime's error.
async fn said<T>(call: impl Future<Output = Result<Response<T>, Status>>) -> Result<T> {
    match call.await {
        Ok(answer) => Ok(answer.into_inner()),
        Err(status) => bail!("{:?}: {}", status.code(), status.message()),
    }
}

fn times<T>(answers: Vec<Result<(T, Duration)>>) -> Vec<Result<Duration>> {
    let time = |answer: Result<(T, Duration)>| answer.map(|(_, took)| took);
    answers.into_iter().map(time).collect()
}

async fn run(
    mut client: RuntimeServiceClient<Channel>,
    config: v1::PodSandboxConfig,
    runtime_handler: String,
) -> Result<Sandbox> {
    let start = Instant::now();
    let request = v1::RunPodSandboxRequest {
        config: Some(config.clone()),
        runtime_handler,
    };
    let answer = said(client.run_pod_sandbox(request)).await?;
    let (took, id) = (start.elapsed(), answer.pod_sandbox_id);
    let request = v1::PodSandboxStatusRequest {
        pod_sandbox_id: id.clone(),
        verbose: true,
    };
    let answer = said(client.pod_sandbox_status(request)).await?;
    let netns = netns_in(&answer)?;
    let network = answer.status.and_then(|status| status.network);
    let network = network.unwrap_or_default();
    let others = network.additional_ips.iter().map(|pod| &pod.ip);
    let addresses = std::iter::once(&network.ip).chain(others);
    let addresses: Result<Vec<_>, _> = addresses.map(|text| text.parse()).collect();
    Ok(Sandbox {
        id,
        addresses: addresses.with_context(|| format!("the pod's addresses: {network:?}"))?,
        netns,
        took,
        config,
    })
}

/// The network namespace in a pod's details.
fn netns_in(answer: &v1::PodSandboxStatusResponse) -> Result<PathBuf> {
    let info = answer.info.get("info").context("the pod's details")?;
    let info: Value = serde_json::from_str(info)?;
    let namespaces = info["runtimeSpec"]["linux"]["namespaces"].as_array();
    let path = namespaces
        .into_iter()
        .flatten()
        .find(|namespace| namespace["type"] == "network")
        .and_then(|namespace| namespace["path"].as_str());
    Ok(path.context("the pod's network namespace")?.into())
}
