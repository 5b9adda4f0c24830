//! Checks of a configuration before the agent acts on it.

use anyhow::{Result, bail};

use crate::cluster::Prepared;
use config::{Config, mark_neighbours};
use sources::{masq_agent, node, pools};

/// Longest path of a Unix socket (`sun_path` in unix(7), less the terminator).
const SOCKET_MAX: usize = 107;

/// A configuration that the agent can run with.
pub(crate) struct Checked {
    /// The cluster; none without one.
    pub(crate) cluster: Option<Prepared>,
    /// Settings that may have an unintended effect. The agent still runs.
    pub(crate) warnings: Vec<String>,
    /// Files that cannot be used as they are now, with the reasons.
    pub(crate) files: Vec<String>,
}

impl Checked {
    /// Logs the warnings. Problems of files are logged by their followers.
    pub(crate) fn log(&self) {
        for warning in &self.warnings {
            tracing::warn!("{warning}");
        }
    }
}

/// Checks what the configuration says as a whole, and the files that it names. The agent starts by
/// this, and `towpath config check` does nothing else.
///
/// Must be called inside a tokio runtime.
///
/// # Errors
/// When the agent would not start. The error names the key, the value and what is allowed.
pub(crate) async fn check(config: &Config) -> Result<Checked> {
    check_socket(config)?;
    check_addresses(config)?;
    let cluster = if config.kubernetes.enabled {
        Some(Prepared::new(config).await?)
    } else {
        None
    };
    Ok(Checked {
        cluster,
        warnings: mark_neighbours(config.datapath.mark_mask),
        files: files(config),
    })
}

fn check_socket(config: &Config) -> Result<()> {
    let path = config.socket.as_path();
    let length = path.as_os_str().len();
    if length > SOCKET_MAX {
        bail!(
            "socket: {} has {length} bytes; allowed: at most {SOCKET_MAX}",
            path.display()
        );
    }
    Ok(())
}

/// Two listeners cannot have one address.
fn check_addresses(config: &Config) -> Result<()> {
    let (Some(http), Some(metrics)) = (config.http.address, config.metrics.address) else {
        return Ok(());
    };
    let is_any = http.ip().is_unspecified() || metrics.ip().is_unspecified();
    if http.port() == metrics.port() && (is_any || http.ip() == metrics.ip()) {
        bail!(
            "metrics.address: {metrics} is refused beside http.address {http}; allowed: another \
             port, or null"
        );
    }
    Ok(())
}

/// Checks the files that the agent follows. An unusable one keeps no agent from starting, because
/// it may be written later.
fn files(config: &Config) -> Vec<String> {
    let settings = config.settings();
    let masquerade = &settings.masquerade;
    let pools = masquerade.pools.as_deref().map(pools::look);
    let agent = masquerade.agent.as_deref().map(masq_agent::look);
    let document = config.node.document.as_path();
    let node = if config.kubernetes.enabled {
        Vec::new()
    } else {
        node::look(document, settings.mark)
    };
    let notes = [pools, agent].into_iter().flatten().flatten();
    notes.chain(node).collect()
}
