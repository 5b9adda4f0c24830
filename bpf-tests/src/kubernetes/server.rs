//! etcd and kube-apiserver as child processes.

use std::fs::{self, File};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use super::{Caller, crds, path_of};
use crate::fabric::Netns;
use crate::fabric::eventually::{check, eventually};

/// Names the folder of both binaries.
const BINARIES_VARIABLE: &str = "TOWPATH_API_SERVER";
/// How long either may take to start on a busy machine.
const START: Duration = Duration::from_mins(2);
/// Where etcd serves, on the loopback device of the namespace.
const STORE: &str = "http://127.0.0.1:2379";
const STORE_PEER: &str = "http://127.0.0.1:2380";
/// Where the API server serves.
const PORT: u16 = 6443;
/// The token of who may do everything.
const ADMIN: &str = "admin-of-the-test";
/// The cluster's service CIDR.
const SERVICES: &str = "10.96.0.0/16";

/// A running API server. Dropping it ends it and its store.
#[derive(Debug)]
pub struct ApiServer {
    netns: Netns,
    folder: PathBuf,
    binaries: PathBuf,
    address: IpAddr,
    store: Child,
    server: Option<Child>,
}

impl ApiServer {
    /// Starts both in a namespace, with their files in a folder, and waits until they are ready.
    ///
    /// # Errors
    /// When a binary is missing, or one of them does not become ready: with its log.
    pub fn start(netns: &Netns, folder: &Path) -> Result<Self> {
        Self::start_at(netns, folder, Ipv4Addr::LOCALHOST.into())
    }

    /// The same at an address of the namespace, which the service `kubernetes` leads to then.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_at(netns: &Netns, folder: &Path, address: IpAddr) -> Result<Self> {
        let binaries = std::env::var_os(BINARIES_VARIABLE).with_context(|| {
            format!(
                "{BINARIES_VARIABLE} names no folder with etcd and kube-apiserver: `cargo xtask \
                     test api` builds them"
            )
        })?;
        let binaries = PathBuf::from(binaries);
        fs::create_dir_all(folder)?;
        fs::write(
            folder.join("tokens.csv"),
            format!("{ADMIN},admin,1,\"system:masters\"\n"),
        )?;
        let mut etcd = netns.command(&binaries.join("etcd").to_string_lossy());
        etcd.arg("--data-dir").arg(folder.join("etcd"));
        // What a test writes need not outlive the machine.
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
        let store = spawn(&mut etcd, &folder.join("etcd.log"))?;
        let mut server = Self {
            netns: Netns::foreign(&netns.path())?,
            folder: folder.to_owned(),
            binaries,
            address,
            store,
            server: None,
        };
        server.resume()?;
        Ok(server)
    }

    /// Ends the API server, as a crash does; what it has stored stays.
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
        let certificates = self.folder.join("certificates");
        let key = certificates.join("apiserver.key");
        let mut command = self
            .netns
            .command(&self.binaries.join("kube-apiserver").to_string_lossy());
        command
            .arg("--cert-dir")
            .arg(&certificates)
            .arg("--token-auth-file")
            .arg(self.folder.join("tokens.csv"))
            // Of the pair that it makes for itself.
            .arg("--service-account-key-file")
            .arg(&key)
            .arg("--service-account-signing-key-file")
            .arg(&key)
            .args(["--etcd-servers", STORE])
            .args(["--bind-address", &self.address.to_string()])
            .args(["--advertise-address", &self.address.to_string()])
            .args(["--secure-port", &PORT.to_string()])
            .args(["--service-cluster-ip-range", SERVICES])
            .args(["--service-account-issuer", "https://kubernetes.default.svc"])
            .args(["--authorization-mode", "RBAC", "--allow-privileged=true"])
            // It would wait for a controller that makes accounts.
            .args(["--disable-admission-plugins", "ServiceAccount"])
            .args(["--watch-cache-sizes", "pods#100"]);
        self.server = Some(spawn(&mut command, &log)?);
        let mut ended = None;
        let (netns, folder, url) = (&self.netns, &self.folder, self.url());
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
                Caller::new(netns, url.clone(), &certificate(folder), ADMIN).get("/readyz")?;
            check(answer.code == 200, || answer.to_string())
        });
        let log = || fs::read_to_string(&log).unwrap_or_default();
        if let Some(status) = ended {
            bail!("kube-apiserver ended with {status}: {}", log());
        }
        ready.map(drop).with_context(log)
    }

    /// Where it serves.
    #[must_use]
    pub fn url(&self) -> String {
        format!("https://{}", SocketAddr::new(self.address, PORT))
    }

    /// The file with the certificate that it shows, and its issuer's.
    #[must_use]
    pub fn certificate(&self) -> PathBuf {
        certificate(&self.folder)
    }

    /// Asks as somebody who may do everything.
    #[must_use]
    pub fn admin(&self) -> Caller<'_> {
        self.with_token(ADMIN)
    }

    /// Asks with a token.
    #[must_use]
    pub fn with_token(&self, token: &str) -> Caller<'_> {
        Caller::new(&self.netns, self.url(), &self.certificate(), token)
    }

    /// A token of a service account that exists.
    ///
    /// # Errors
    /// When the account does not exist.
    pub fn token_of(&self, namespace: &str, account: &str) -> Result<String> {
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token");
        let request = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "spec": {"expirationSeconds": 3600}
        });
        let answer = self.admin().post(&path, &request)?.expect(201)?;
        let token = answer["status"]["token"].as_str();
        Ok(token.context("the answer has no token")?.to_owned())
    }

    /// Writes a kubeconfig with a token, and returns where it is.
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

    /// Writes a kubeconfig of who may do everything.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn admin_kubeconfig(&self) -> Result<PathBuf> {
        self.kubeconfig("admin", &self.url(), ADMIN)
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

    /// Makes the definitions of the custom resources that are not there, and waits until they are
    /// served.
    ///
    /// # Errors
    /// When one is refused, or does not come to be served.
    pub fn make_crds(&self) -> Result<()> {
        crds()?.iter().try_for_each(|crd| self.make_crd(crd))
    }

    /// Makes the definition of a custom resource if it is not there, and waits until it is served.
    ///
    /// # Errors
    /// When it is refused, or does not come to be served.
    pub fn make_crd(&self, crd: &Value) -> Result<()> {
        let path = path_of(crd)?;
        let (collection, _) = path.rsplit_once('/').context("it is of a collection")?;
        // Not by a server-side apply: that refuses what this server does not know yet.
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
        end(&mut self.store);
    }
}

fn certificate(folder: &Path) -> PathBuf {
    folder.join("certificates/apiserver.crt")
}

/// Has a command write to a log.
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
