//! The binary `towpath-operator`.

use std::process::ExitCode;
use std::sync::Arc;

use ec2::{Client, Ec2, Settings};
use operator::config::Ec2Section;

fn main() -> ExitCode {
    operator::cli::main(|section| {
        Box::pin(async move {
            let client = Client::connect(&settings(section)).await?;
            Ok(Arc::new(client) as Arc<dyn Ec2>)
        })
    })
}

fn settings(section: Ec2Section) -> Settings {
    Settings {
        region: section.region,
        endpoint: section.endpoint,
        page: u16::try_from(section.page_size.get()).unwrap_or(u16::MAX),
        limit: section.call_timeout.get(),
    }
}
