//! `forebay bench` as steps of a job on two nodes: `srun` starts the ranks, by PMIx for Open MPI and by PMI-2 for MPICH.

use super::cluster::{Cluster, Plugin};
use serde_json::Value;
use std::fs;

/// Ranks on two hosts are one run: the nodes are told apart, shared files are written by all, each rank reads what one of the other
/// node wrote, and clocks and figures are those of all.
#[test]
fn srun_starts_the_ranks_of_a_benchmark_on_two_nodes() {
    let cluster = Cluster::new(Plugin::Datawarp);
    let forebay = cluster.base.join("bin/forebay");
    let body = "set -e
export OMPI_MCA_btl=tcp,self OMPI_MCA_btl_tcp_if_include=net1,net2 OMPI_MCA_mpi_yield_when_idle=1 TMPDIR=/tmp HOME=/tmp
export MPIR_CVAR_CH4_NETMOD=ofi FI_PROVIDER=tcp FI_TCP_IFACE=net0
bench() { # MPI NAME ARGS...
  mpi=$1 name=$2; shift 2
  srun --mpi=$mpi -N 2 -n 4 FOREBAY bench \"$@\" > @PFS@/$name.json
}
for mpi in pmix pmi2; do
  bench $mpi $mpi.ior ior -C -t 47008 -b 94016 -s 3 -w -R -G 7 -k -e --json -o @PFS@/$mpi.file
  bench $mpi $mpi.mpiio ior -a MPIIO -c -C -t 64k -b 128k -s 2 -w -R -G 7 -k -e --json -o @PFS@/$mpi.mpiio
  bench $mpi $mpi.netcdf netcdf -d 2:8:8:4 -t coll --verify --json @PFS@
  bench $mpi $mpi.mdtest mdtest -n 10 -u -F -N 2 --json @PFS@
done";
    let body = body.replace("FOREBAY", forebay.to_str().unwrap());
    let script = cluster.script(&["#SBATCH -N 2", "#SBATCH -n 4"], &body);
    let job = cluster.submit(&script, "").unwrap();
    assert_eq!(cluster.until_over(job), "COMPLETED", "{}{}", cluster.output(job), cluster.logs());
    let told = |name: &str| -> Value {
        let text = fs::read_to_string(cluster.pfs(&format!("{name}.json"))).unwrap();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}: {text}"))
    };
    for (mpi, library) in [("pmix", "Open MPI"), ("pmi2", "MPICH")] {
        for (name, bytes) in [("ior", 4 * 3 * 94_016), ("mpiio", 4 * 2 * 128 * 1024)] {
            let found = told(&format!("{mpi}.{name}"));
            let parameters = &found["tests"][0]["Parameters"];
            assert_eq!(parameters["numTasks"], 4, "{parameters}");
            assert_eq!(parameters["nodes"], 2, "{parameters}");
            // Reads are those of the other node: no remark that each reads its own.
            assert!(!found["notes"].to_string().contains("what it wrote itself"), "{found}");
            let file = if name == "ior" { "file" } else { "mpiio" };
            let path = cluster.pfs(&format!("{mpi}.{file}"));
            assert_eq!(fs::metadata(path).unwrap().len(), bytes, "{mpi} {name}");
        }
        let netcdf = told(&format!("{mpi}.netcdf"));
        assert_eq!(netcdf["differences"], 0, "{netcdf}");
        assert!(netcdf["notes"].to_string().contains(library), "{netcdf}");
        let mdtest = told(&format!("{mpi}.mdtest"));
        let phases = mdtest["phases"].as_array().unwrap();
        assert!(phases.iter().all(|phase| phase["ranks"].as_array().unwrap().len() == 4));
    }
    // Both libraries have written the same.
    assert!(
        fs::read(cluster.pfs("pmix.file")).unwrap() == fs::read(cluster.pfs("pmi2.file")).unwrap()
    );
}
