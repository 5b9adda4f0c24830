//! The programs, judged: a reference model, random packets held against it, and an interpreter that
//! counts what each path costs.

pub mod fuzz;
pub mod interpreter;
pub mod model;
pub mod path_cost;
