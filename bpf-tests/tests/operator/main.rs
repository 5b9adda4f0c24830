//! The operator beside a real API server and a cloud that is played: `towpath-operator` as a process,
//! with exactly the rights of the manifests.

mod bed;
mod beside;
mod cli;
mod documents;
mod first_address;
mod iam;
mod kills;
mod nodes;
mod plain_pools;
mod pools;
mod pools_of_cilium;
mod releases;
mod restored;
mod rights;
mod rights_verbs;
mod scale;
mod static_ip;
mod taint;
mod takeover;
mod writers;
