//! A minimal runtime for the CNI specification: it runs the plugins of a configuration list in
//! every version, with nothing between a test and a plugin.

use std::fmt;
use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::{Map, Value, json};
use testkit::fabric::Netns;

/// Names the point at which the plugin kills itself.
pub(crate) const PLUGIN_FAULT: &str = "TOWPATH_CNI_FAULT";

/// A network: a configuration list, and the folders of its plugins.
#[derive(Clone, Debug)]
pub(crate) struct Network {
    pub(crate) version: String,
    pub(crate) name: String,
    pub(crate) plugins: Vec<Value>,
    /// Folders of plugins.
    pub(crate) path: Vec<PathBuf>,
}

/// A container's interface in a network.
#[derive(Clone, Debug)]
pub(crate) struct Attachment {
    pub(crate) id: String,
    pub(crate) interface: String,
    pub(crate) netns: PathBuf,
    /// `CNI_ARGS`.
    pub(crate) args: String,
    /// Arguments for capabilities, by name.
    pub(crate) runtime: Map<String, Value>,
}

impl Attachment {
    pub(crate) fn new(id: &str, netns: &Path) -> Self {
        Self {
            id: id.to_owned(),
            interface: "eth0".to_owned(),
            netns: netns.to_owned(),
            args: String::new(),
            runtime: Map::new(),
        }
    }

    /// The path of its endpoint at the agent's socket.
    pub(crate) fn endpoint(&self) -> String {
        format!("/v1/endpoints/{}/{}", self.id, self.interface)
    }
}

/// A plugin's error.
#[derive(Debug)]
pub(crate) struct Refusal {
    /// The specification's error code, if the plugin printed one.
    pub(crate) code: Option<u64>,
    pub(crate) text: String,
    /// True if the plugin was killed.
    pub(crate) killed: bool,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Refusal {}

/// A running plugin.
pub(crate) struct Running(Child);

impl Running {
    /// Its answer.
    pub(crate) fn wait(self) -> Result<Value> {
        answer(&self.0.wait_with_output()?)
    }
}

impl Network {
    /// The list in the form of a file for a runtime.
    pub(crate) fn list(&self) -> Value {
        json!({"cniVersion": self.version, "name": self.name, "plugins": self.plugins})
    }

    /// The configuration of one plugin of the list: specification 1.1.0, section 3, "Deriving
    /// execution configuration from plugin configuration".
    fn derived(
        &self,
        plugin: &Value,
        runtime: &Map<String, Value>,
        more: &[(&str, Value)],
    ) -> Value {
        let mut config = plugin.clone();
        config["cniVersion"] = json!(self.version);
        config["name"] = json!(self.name);
        if let Some(capabilities) = config["capabilities"].as_object() {
            let is_requested =
                |(name, _): &(&String, &Value)| capabilities.get(*name) == Some(&json!(true));
            let requested = runtime.iter().filter(is_requested);
            config["runtimeConfig"] = requested
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect();
        }
        if let Some(object) = config.as_object_mut() {
            object.remove("capabilities");
        }
        for (key, value) in more {
            config[*key] = value.clone();
        }
        config
    }

    /// Starts a plugin of the list with a command of the specification.
    fn start(&self, node: &Netns, plugin: &Value, command: &Verb<'_>) -> Result<Running> {
        let Verb {
            name: verb,
            attachment,
            more,
            environment,
        } = *command;
        let kind = plugin["type"].as_str().context("a plugin's type")?;
        let found = self.path.iter().map(|folder| folder.join(kind));
        let program = found.into_iter().find(|program| program.exists());
        let program = program.with_context(|| format!("no plugin {kind} in {:?}", self.path))?;
        let none = Map::new();
        let runtime = attachment.map_or(&none, |attachment| &attachment.runtime);
        let config = self.derived(plugin, runtime, more);
        let mut command = node.command(&program.to_string_lossy());
        command
            .env("CNI_COMMAND", verb)
            .env("CNI_PATH", std::env::join_paths(&self.path)?)
            .envs(environment.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if let Some(attachment) = attachment {
            command
                .env("CNI_CONTAINERID", &attachment.id)
                .env("CNI_IFNAME", &attachment.interface)
                .env("CNI_NETNS", &attachment.netns)
                .env("CNI_ARGS", &attachment.args);
        }
        let mut child = command.spawn()?;
        let mut stdin = child.stdin.take().context("the plugin's stdin")?;
        // A plugin that is killed at once does not read it.
        let _killed = stdin.write_all(config.to_string().as_bytes());
        Ok(Running(child))
    }

    /// ADD of every plugin, in their order; the last one's result.
    pub(crate) fn add(&self, node: &Netns, attachment: &Attachment) -> Result<Value> {
        self.add_with(node, attachment, &[])
    }

    /// ADD of every plugin, with variables in the plugins' environment.
    pub(crate) fn add_with(
        &self,
        node: &Netns,
        attachment: &Attachment,
        environment: &[(&str, &str)],
    ) -> Result<Value> {
        let mut result: Option<Value> = None;
        for plugin in &self.plugins {
            let more: Vec<_> = result
                .into_iter()
                .map(|value| ("prevResult", value))
                .collect();
            let verb = Verb {
                attachment: Some(attachment),
                more: &more,
                environment,
                ..Verb::named("ADD")
            };
            let run = self.start(node, plugin, &verb)?;
            result = Some(run.wait()?);
        }
        result.context("a network has plugins")
    }

    /// Starts ADD of the first plugin, and does not wait for it.
    pub(crate) fn start_add(&self, node: &Netns, attachment: &Attachment) -> Result<Running> {
        let plugin = self.plugins.first().context("a network has plugins")?;
        let verb = Verb {
            attachment: Some(attachment),
            ..Verb::named("ADD")
        };
        self.start(node, plugin, &verb)
    }

    /// Repeats ADD until it succeeds, as a kubelet does.
    pub(crate) fn add_again(
        &self,
        node: &Netns,
        attachment: &Attachment,
        deadline: Duration,
    ) -> Result<Value> {
        let start = Instant::now();
        loop {
            match self.add(node, attachment) {
                Ok(result) => return Ok(result),
                Err(error) if start.elapsed() > deadline => return Err(error),
                Err(_not_yet) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    /// DEL of every plugin, in the reverse order.
    pub(crate) fn del(
        &self,
        node: &Netns,
        attachment: &Attachment,
        result: Option<&Value>,
    ) -> Result<()> {
        self.del_with(node, attachment, result, &[])
    }

    /// DEL of every plugin, with variables in the plugins' environment.
    pub(crate) fn del_with(
        &self,
        node: &Netns,
        attachment: &Attachment,
        result: Option<&Value>,
        environment: &[(&str, &str)],
    ) -> Result<()> {
        let more: Vec<_> = result
            .map(|value| ("prevResult", value.clone()))
            .into_iter()
            .collect();
        for plugin in self.plugins.iter().rev() {
            let verb = Verb {
                attachment: Some(attachment),
                more: &more,
                environment,
                ..Verb::named("DEL")
            };
            let run = self.start(node, plugin, &verb)?;
            run.wait()?;
        }
        Ok(())
    }

    /// CHECK of every plugin.
    pub(crate) fn check(
        &self,
        node: &Netns,
        attachment: &Attachment,
        result: &Value,
    ) -> Result<()> {
        let more = [("prevResult", result.clone())];
        let verb = Verb {
            attachment: Some(attachment),
            more: &more,
            ..Verb::named("CHECK")
        };
        for plugin in &self.plugins {
            self.start(node, plugin, &verb)?.wait()?;
        }
        Ok(())
    }

    /// STATUS of every plugin.
    pub(crate) fn status(&self, node: &Netns) -> Result<()> {
        for plugin in &self.plugins {
            self.start(node, plugin, &Verb::named("STATUS"))?.wait()?;
        }
        Ok(())
    }

    /// GC of every plugin, with the valid attachments.
    pub(crate) fn collect(&self, node: &Netns, valid: &[&Attachment]) -> Result<()> {
        let entry = |attachment: &&Attachment| json!({"containerID": attachment.id, "ifname": attachment.interface});
        let valid: Vec<_> = valid.iter().map(entry).collect();
        let more = [("cni.dev/valid-attachments", json!(valid))];
        let verb = Verb {
            more: &more,
            ..Verb::named("GC")
        };
        for plugin in &self.plugins {
            self.start(node, plugin, &verb)?.wait()?;
        }
        Ok(())
    }

    /// VERSION of the first plugin.
    pub(crate) fn versions(&self, node: &Netns) -> Result<Value> {
        let plugin = self.plugins.first().context("a network has plugins")?;
        self.start(node, plugin, &Verb::named("VERSION"))?.wait()
    }
}

/// A command of the specification.
#[derive(Clone, Copy)]
struct Verb<'a> {
    name: &'static str,
    attachment: Option<&'a Attachment>,
    /// Fields that the plugin's configuration has in addition.
    more: &'a [(&'a str, Value)],
    /// Variables of its environment.
    environment: &'a [(&'a str, &'a str)],
}

impl Verb<'_> {
    /// A command of no attachment.
    fn named(name: &'static str) -> Self {
        Self {
            name,
            attachment: None,
            more: &[],
            environment: &[],
        }
    }
}

/// Output of a plugin, or its error.
fn answer(output: &Output) -> Result<Value> {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return match text.trim() {
            "" => Ok(Value::Null),
            text => serde_json::from_str(text).with_context(|| format!("a plugin printed {text}")),
        };
    }
    let printed: Value = serde_json::from_str(&text).unwrap_or_default();
    let said = String::from_utf8_lossy(&output.stderr);
    bail!(Refusal {
        code: printed["code"].as_u64(),
        text: format!("{}: {text}{said}", output.status),
        killed: output.status.signal() == Some(libc::SIGKILL),
    })
}

/// The error of a plugin.
pub(crate) fn refusal(error: &anyhow::Error) -> &Refusal {
    match error.downcast_ref() {
        Some(refusal) => refusal,
        None => panic!("no refusal of a plugin: {error:#}"),
    }
}
