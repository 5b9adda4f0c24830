//! etcd and kube-apiserver as child processes.

use std::fs::{self, File};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use super::user::{self, User};
use super::{Caller, crds, path_of, program};
use crate::fabric::Netns;
use crate::fabric::eventually::{check, eventually};

/// The time that either may take to start on a busy machine.
const START: Duration = Duration::from_mins(2);
/// URL of etcd, on the loopback device of the namespace.
const STORE: &str = "http://127.0.0.1:2379";
const STORE_PEER: &str = "http://127.0.0.1:2380";
/// Port of the API server.
const PORT: u16 = 6443;
/// An unused address (RFC 5737).
const UNUSED: &str = "192.0.2.1";
/// The default service CIDR.
const SERVICES: &str = "10.96.0.0/16";

/// The description of an API server to start.
#[derive(Clone, Debug)]
pub struct ServerSpec {
    /// The address that it serves at.
    ///
    /// One of loopback serves its namespace alone, and the service `kubernetes` then leads nowhere.
    pub address: IpAddr,
    /// The cluster's service CIDRs, as the flag has them.
    pub services: String,
    /// The nodes whose kubelets join. With any, admission and rights are those of a real cluster, whose
    /// controllers make the accounts that pods need.
    pub nodes: Vec<String>,
}

impl Default for ServerSpec {
    fn default() -> Self {
        Self {
            address: Ipv4Addr::LOCALHOST.into(),
            services: SERVICES.to_owned(),
            nodes: Vec::new(),
        }
    }
}

/// A running API server. Dropping it ends it and its store.
#[derive(Debug)]
pub struct ApiServer {
    netns: Netns,
    folder: PathBuf,
    spec: ServerSpec,
    store: Option<Child>,
    server: Option<Child>,
}

impl ApiServer {
    /// Starts both in a namespace, with their files in a folder, and waits until they are ready.
    ///
    /// # Errors
    /// When a binary is missing, or one of them does not become ready: with its log.
    pub fn start(netns: &Netns, folder: &Path) -> Result<Self> {
        Self::start_as(netns, folder, ServerSpec::default())
    }

    /// As [`Self::start`], for a server of this kind.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_as(netns: &Netns, folder: &Path, spec: ServerSpec) -> Result<Self> {
        fs::create_dir_all(folder)?;
        fs::write(folder.join("tokens.csv"), user::token_file(&spec.nodes))?;
        let mut server = Self {
            netns: Netns::foreign(&netns.path())?,
            folder: folder.to_owned(),
            spec,
            store: None,
            server: None,
        };
        server.start_store()?;
        server.resume()?;
        Ok(server)
    }

    /// Starts the store, or restarts it with its data.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start_store(&mut self) -> Result<()> {
        self.kill_store();
        let mut etcd = self.command("etcd")?;
        etcd.arg("--data-dir").arg(self.folder.join("etcd"));
        // A test's data need not outlive the machine.
        etcd.args(["--unsafe-no-fsync", "--name", "default"])
            .args([
                "--listen-client-urls",
                STORE,
                "--advertise-client-urls",
                STORE,
            ])
            .args(["--listen-peer-urls", STORE_PEER])
            .args(["--initial-advertise-peer-urls", STORE_PEER])
            .args(["--initial-cluster", &format!("default={STORE_PEER}")]);
        self.store = Some(spawn(&mut etcd, &self.folder.join("etcd.log"))?);
        Ok(())
    }

    /// Kills the store, as a crash does.
    pub fn kill_store(&mut self) {
        if let Some(mut store) = self.store.take() {
            end(&mut store);
        }
    }

    /// URL of the store in the server's namespace.
    #[must_use]
    pub fn store(&self) -> &'static str {
        STORE
    }

    fn command(&self, name: &str) -> Result<Command> {
        Ok(self.netns.command(&program(name)?.to_string_lossy()))
    }

    /// Kills the API server, as a crash does; its data stays.
    pub fn kill(&mut self) {
        if let Some(mut server) = self.server.take() {
            end(&mut server);
        }
    }

    /// Starts the API server again, and waits until it is ready.
    ///
    /// # Errors
    /// When it does not become ready: with its log.
    pub fn resume(&mut self) -> Result<()> {
        self.kill();
        let log = self.folder.join("kube-apiserver.log");
        let mut command = self.command("kube-apiserver")?;
        self.arguments(&mut command);
        self.server = Some(spawn(&mut command, &log)?);
        let mut ended = None;
        let (netns, folder, url) = (&self.netns, &self.folder, self.url());
        let admin = User::Admin.token();
        let child = self.server.as_mut();
        let Some(child) = child else {
            bail!("it was started")
        };
        let ready = eventually(START, "the API server is ready", || {
            ended = child.try_wait()?;
            if ended.is_some() {
                return Ok(());
            }
            let answer =
                Caller::new(netns, url.clone(), &certificate(folder), &admin).get("/readyz")?;
            check(answer.code == 200, || answer.to_string())
        });
        let log = || fs::read_to_string(&log).unwrap_or_default();
        if let Some(status) = ended {
            bail!("kube-apiserver ended with {status}: {}", log());
        }
        ready.map(drop).with_context(log)
    }

    fn arguments(&self, command: &mut Command) {
        let certificates = self.folder.join("certificates");
        let (address, key) = (self.spec.address.to_string(), self.service_account_key());
        command
            .arg("--cert-dir")
            .arg(&certificates)
            .arg("--token-auth-file")
            .arg(self.folder.join("tokens.csv"))
            // The key of the pair that it makes for itself.
            .arg("--service-account-key-file")
            .arg(&key)
            .arg("--service-account-signing-key-file")
            .arg(&key)
            .args(["--etcd-servers", STORE, "--bind-address", &address])
            .args(["--secure-port", &PORT.to_string()])
            .args(["--service-cluster-ip-range", &self.spec.services])
            .args(["--service-account-issuer", "https://kubernetes.default.svc"])
            .args([
                "--allow-privileged=true",
                "--kubelet-preferred-address-types=InternalIP",
            ]);
        if self.spec.address.is_loopback() {
            // No pod reaches it. It needs an address to advertise, which may be unused then.
            command
                .args(["--endpoint-reconciler-type", "none"])
                .args(["--advertise-address", UNUSED]);
        } else {
            command.args(["--advertise-address", &address]);
        }
        if self.spec.nodes.is_empty() {
            // The plugin would wait for a controller that makes accounts.
            command
                .args(["--authorization-mode", "RBAC"])
                .args(["--disable-admission-plugins", "ServiceAccount"]);
        } else {
            command
                .args(["--authorization-mode", "Node,RBAC"])
                .args(["--enable-admission-plugins", "NodeRestriction"]);
        }
    }

    /// The key that service accounts' tokens are signed with.
    pub(super) fn service_account_key(&self) -> PathBuf {
        self.folder.join("certificates/apiserver.key")
    }

    /// The folder of its files.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The namespace of the server.
    #[must_use]
    pub fn netns(&self) -> &Netns {
        &self.netns
    }

    /// URL of the server.
    #[must_use]
    pub fn url(&self) -> String {
        format!("https://{}", SocketAddr::new(self.spec.address, PORT))
    }

    /// The file with its certificate and its issuer's.
    #[must_use]
    pub fn certificate(&self) -> PathBuf {
        certificate(&self.folder)
    }

    /// A client with all rights.
    #[must_use]
    pub fn admin(&self) -> Caller<'_> {
        self.with_token(&User::Admin.token())
    }

    /// A client with a token.
    #[must_use]
    pub fn with_token(&self, token: &str) -> Caller<'_> {
        Caller::new(&self.netns, self.url(), &self.certificate(), token)
    }

    /// A token of an existing service account.
    ///
    /// # Errors
    /// When the account does not exist.
    pub fn token_of(&self, namespace: &str, account: &str) -> Result<String> {
        self.token_bound_to(namespace, account, &Value::Null)
    }

    /// A token of a service account that is valid while an object exists. A token of a pod also
    /// names the pod's node.
    ///
    /// # Errors
    /// When the account or the object does not exist.
    pub fn token_bound_to(&self, namespace: &str, account: &str, object: &Value) -> Result<String> {
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token");
        let request = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "spec": {"expirationSeconds": 3600, "boundObjectRef": object}
        });
        let answer = self.admin().post(&path, &request)?.expect(201)?;
        let token = answer["status"]["token"].as_str();
        Ok(token.context("the answer has no token")?.to_owned())
    }

    /// Writes a kubeconfig with a token, and returns its path.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn kubeconfig(&self, name: &str, server: &str, token: &str) -> Result<PathBuf> {
        let path = self.folder.join(format!("{name}.kubeconfig"));
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{
                "name": "test",
                "cluster": {"server": server, "certificate-authority": self.certificate()}
            }],
            "users": [{"name": "test", "user": {"token": token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        });
        fs::write(&path, config.to_string())?;
        Ok(path)
    }

    /// Writes a kubeconfig with all rights.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn admin_kubeconfig(&self) -> Result<PathBuf> {
        self.kubeconfig_of(&User::Admin)
    }

    /// Writes a user's kubeconfig.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn kubeconfig_of(&self, user: &User) -> Result<PathBuf> {
        self.kubeconfig(&user.file_name(), &self.url(), &user.token())
    }

    /// Applies objects, one after the other.
    ///
    /// # Errors
    /// When one is refused.
    pub fn apply(&self, objects: &[Value]) -> Result<()> {
        let admin = self.admin();
        objects
            .iter()
            .try_for_each(|object| admin.apply(&path_of(object)?, object).map(drop))
    }

    /// Creates the missing definitions of the custom resources, and waits until they are served.
    ///
    /// # Errors
    /// When one is refused, or is not served in time.
    pub fn make_crds(&self) -> Result<()> {
        crds()?.iter().try_for_each(|crd| self.make_crd(crd))
    }

    /// Creates the definition of a custom resource if it is missing, and waits until it is served.
    ///
    /// # Errors
    /// When it is refused, or is not served in time.
    pub fn make_crd(&self, crd: &Value) -> Result<()> {
        let path = path_of(crd)?;
        let (collection, _) = path.rsplit_once('/').context("it is of a collection")?;
        // A server-side apply would refuse kinds that this server does not serve yet.
        let answer = self.admin().post(collection, crd)?;
        if answer.code != 409 {
            answer.expect(201)?;
        }
        let served = || {
            let crd = self.admin().get(&path)?.expect(200)?;
            let conditions = crd["status"]["conditions"].as_array();
            let served = conditions.into_iter().flatten().any(|condition| {
                condition["type"] == "Established" && condition["status"] == "True"
            });
            check(served, || crd["status"].to_string())
        };
        eventually(START, "the custom resource is served", served).map(drop)
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.kill();
        self.kill_store();
    }
}

fn certificate(folder: &Path) -> PathBuf {
    folder.join("certificates/apiserver.crt")
}

/// Makes a command write to a log.
pub(super) fn log_to<'a>(command: &'a mut Command, log: &Path) -> Result<&'a mut Command> {
    let log = File::options().create(true).append(true).open(log)?;
    Ok(command
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log))
}

fn spawn(command: &mut Command, log: &Path) -> Result<Child> {
    log_to(command, log)?;
    let program = command.get_program().to_owned();
    let child = command.spawn();
    child.with_context(|| format!("cannot start {}", program.display()))
}

pub(super) fn end(child: &mut Child) {
    // It may have ended by itself.
    let _ended = child.kill().and_then(|()| child.wait());
}
