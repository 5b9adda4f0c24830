//! A control plane without nodes, and the components of Towpath that it admits.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use tempfile::TempDir;

use super::{ApiServer, Kubectl, read_manifest};
use crate::fabric::Netns;

/// An API server in a network namespace and a folder of its own, which go with it.
///
/// ```no_run
/// use testkit::kubernetes::{Component, ControlPlane};
///
/// # fn main() -> anyhow::Result<()> {
/// let plane = ControlPlane::create()?;
/// let operator = plane.server.admit(Component::Operator)?;
/// let nodes = "/apis/cilium.io/v2/ciliumnodes";
/// plane.server.with_token(&operator.token).get(nodes)?.expect(200)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct ControlPlane {
    /// The API server.
    pub server: ApiServer,
    /// Its network namespace.
    pub netns: Netns,
    folder: TempDir,
}

impl ControlPlane {
    /// A control plane that serves the custom resources.
    ///
    /// # Errors
    /// When the API server does not start, or refuses a definition.
    pub fn create() -> Result<Self> {
        let plane = Self::bare()?;
        plane.server.make_crds()?;
        Ok(plane)
    }

    /// A control plane that does not know the custom resources.
    ///
    /// # Errors
    /// When the API server does not start.
    pub fn bare() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let name = folder.path().file_name().and_then(|name| name.to_str());
        let name = name.context("a folder's name is UTF-8")?;
        let netns = Netns::create(&format!("plane{name}"))?;
        Ok(Self {
            server: ApiServer::start(&netns, folder.path())?,
            netns,
            folder,
        })
    }

    /// The folder, which programs beside the API server can use too.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// kubectl with all rights.
    ///
    /// # Errors
    /// When its kubeconfig cannot be written.
    pub fn kubectl(&self) -> Result<Kubectl<'_>> {
        Kubectl::new(&self.server, &self.netns, self.folder())
    }
}

/// A component that works with the rights of its manifests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Component {
    /// The agent of a node.
    Agent,
    /// The operator.
    Operator,
}

impl Component {
    /// The namespace of the components' accounts.
    pub const NAMESPACE: &str = "kube-system";

    /// The name of its service account.
    #[must_use]
    pub fn account(self) -> &'static str {
        match self {
            Self::Agent => "towpath",
            Self::Operator => "towpath-operator",
        }
    }

    /// The folder of its manifests, in `deploy/kubernetes`.
    fn folder(self) -> &'static str {
        match self {
            Self::Agent => "base",
            Self::Operator => "operator",
        }
    }

    /// Stem of the names of its files.
    fn file_name(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Operator => "operator",
        }
    }
}

/// A component's access to the API server.
#[derive(Clone, Debug)]
pub struct Access {
    /// A token of its service account.
    pub token: String,
    /// A kubeconfig with that token.
    pub kubeconfig: PathBuf,
}

impl ApiServer {
    /// Makes a component's service account with the rights of its manifests.
    ///
    /// # Errors
    /// When the API server refuses an object, or a file cannot be written.
    pub fn admit(&self, component: Component) -> Result<Access> {
        for manifest in ["serviceaccount", "rbac"] {
            let path = format!("kubernetes/{}/{manifest}.yaml", component.folder());
            self.apply(&read_manifest(&path)?)?;
        }
        let token = self.token_of(Component::NAMESPACE, component.account())?;
        let kubeconfig = self.kubeconfig(component.file_name(), &self.url(), &token)?;
        Ok(Access { token, kubeconfig })
    }
}
