//! `ec2-fake`: EC2's network interfaces for any client of AWS, on this machine.

use std::fs;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::Parser;
use ec2_fake::Cloud;
use ec2_fake::server::{Fake, serve};
use ec2_fake::world::World;
use jiff::Timestamp;
use tokio::net::TcpListener;

/// A world to begin with.
const EXAMPLE: &str = include_str!("../example.json");

const HELP: &str = "\
A world is a JSON document: `ec2-fake --example` prints one. It has VPCs, subnets, route tables, \
security groups, instances and Elastic IP addresses, by id. `settings` has delays and lags as \
[least, most] in milliseconds, `throttle` and `rates`; without it calls take as long as EC2's. \
`principals` are callers by access key, each with a secret and a policy; without any, all calls \
are allowed. `faults` wait for their calls.

  ec2-fake --example > world.json
  ec2-fake world.json --listen 127.0.0.1:4566
  AWS_ACCESS_KEY_ID=any AWS_SECRET_ACCESS_KEY=any AWS_REGION=eu-central-1 \\
    aws ec2 describe-network-interfaces --endpoint-url http://127.0.0.1:4566

Actions: Describe{Addresses,Instances,InstanceTypes,NetworkInterfaces,RouteTables,SecurityGroups,\
Subnets,Tags,Vpcs}, GetSecurityGroupsForVpc, {Create,Attach,Detach,Delete}NetworkInterface, \
ModifyNetworkInterfaceAttribute, {Assign,Unassign}{PrivateIp,Ipv6}Addresses, CreateTags, \
{Associate,Disassociate}Address.";

/// Serve a fake of EC2's network interfaces over HTTP, from a world document.
#[derive(Debug, Parser)]
#[command(name = "ec2-fake", after_long_help = HELP)]
struct Arguments {
    /// World document (JSON).
    #[arg(required_unless_present = "example")]
    world: Option<PathBuf>,
    /// Address to listen on. Port 0 takes a free one, which the first line of output names.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Print a world document and exit.
    #[arg(long)]
    example: bool,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let mut out = std::io::stdout();
    let Some(path) = arguments.world.filter(|_| !arguments.example) else {
        return out
            .write_all(EXAMPLE.as_bytes())
            .context("print the example");
    };
    let cloud = Cloud::build(&read(&path)?, Timestamp::now())
        .with_context(|| format!("build the world of {}", path.display()))?;
    let listener = TcpListener::bind(arguments.listen).await;
    let listener = listener.with_context(|| format!("listen on {}", arguments.listen))?;
    let address = listener.local_addr().context("read the port")?;
    writeln!(out, "http://{address}")?;
    out.flush()?;
    let fake = Fake::new(cloud, Box::new(|_, _| ()));
    tokio::select! {
        served = serve(listener, fake) => match served.context("accept a connection")? {},
        interrupted = tokio::signal::ctrl_c() => interrupted.context("wait for an interrupt"),
    }
}

fn read(path: &Path) -> Result<World> {
    let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("parse {}", path.display()))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;
    use ec2_fake::Cloud;
    use jiff::Timestamp;

    use super::{Arguments, EXAMPLE};

    #[test]
    fn the_example_is_a_world() {
        let world = serde_json::from_str(EXAMPLE).unwrap();
        Cloud::build(&world, Timestamp::UNIX_EPOCH).unwrap();
    }

    #[test]
    fn the_arguments_are_consistent() {
        Arguments::command().debug_assert();
    }
}
