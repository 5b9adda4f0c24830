//! Users of the API server, by static tokens, with the names and groups that Kubernetes binds its own
//! rights to.

use std::fmt::Write as _;

/// A user that the API server knows by its token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum User {
    /// May do everything.
    Admin,
    /// kube-controller-manager.
    ControllerManager,
    /// kube-scheduler.
    Scheduler,
    /// kube-proxy.
    Proxy,
    /// The kubelet of the node of this name.
    Node(String),
}

impl User {
    /// Its token.
    #[must_use]
    pub fn token(&self) -> String {
        format!("token-of-{}", self.file_name())
    }

    /// Stem of the names of its files.
    pub(super) fn file_name(&self) -> String {
        match self {
            Self::Admin => "admin".to_owned(),
            Self::ControllerManager => "kube-controller-manager".to_owned(),
            Self::Scheduler => "kube-scheduler".to_owned(),
            Self::Proxy => "kube-proxy".to_owned(),
            Self::Node(name) => format!("node-{name}"),
        }
    }

    /// Its name to the API server.
    fn name(&self) -> String {
        match self {
            Self::Admin => "admin".to_owned(),
            Self::ControllerManager | Self::Scheduler | Self::Proxy => {
                format!("system:{}", self.file_name())
            }
            Self::Node(name) => format!("system:node:{name}"),
        }
    }

    /// The groups that its rights are bound to, beside its name.
    fn groups(&self) -> &'static str {
        match self {
            Self::Admin => "system:masters",
            Self::Node(_) => "system:nodes",
            Self::ControllerManager | Self::Scheduler | Self::Proxy => "",
        }
    }
}

/// The API server's token file, with the users of a cluster of these nodes.
pub(super) fn token_file(nodes: &[String]) -> String {
    let fixed = [
        User::Admin,
        User::ControllerManager,
        User::Scheduler,
        User::Proxy,
    ];
    let nodes = nodes.iter().cloned().map(User::Node);
    let mut text = String::new();
    for user in fixed.into_iter().chain(nodes) {
        let (token, name, groups) = (user.token(), user.name(), user.groups());
        // Writing to a string cannot fail.
        let _infallible = writeln!(text, "{token},{name},{name},\"{groups}\"");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::token_file;

    #[test]
    fn kubelets_are_of_the_group_that_the_node_authorizer_knows() {
        let text = token_file(&["a".to_owned()]);
        assert!(text.contains("token-of-node-a,system:node:a,system:node:a,\"system:nodes\"\n"));
        assert_eq!(text.lines().count(), 5);
    }
}
