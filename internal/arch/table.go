package arch

// A line places one package.
type line struct {
	dir  string // relative to the module's root
	pure bool   // decides, and does nothing else
	// only, when set, are the packages of ours that this one may import, whatever
	// else stands above it.
	only []string
	// never are packages above this line that it may not import all the same.
	never []string
	// context allows package context in a pure package: the contract of a service
	// has it in its signatures, though the package itself waits for nothing.
	context bool
	// kernel allows a pure package files of some platforms only: it computes one thing,
	// the same everywhere, by other instructions where there are better ones.
	kernel bool
}

// table is the house, lowest floor first. A package may import only packages
// that stand above its own line.
//
// To add a package, give it a line as high as its imports allow: what stands high
// can be used by much and knows little.
var table = []line{
	{dir: ".", pure: true},
	{dir: "internal/invariant", pure: true},
	{dir: "internal/blake3", pure: true, kernel: true, only: []string{}},
	{dir: "internal/cborx", pure: true},
	{dir: "internal/strictyaml", pure: true},
	{dir: "internal/clock"},
	{dir: "internal/durable"},
	{dir: "internal/heap", only: []string{}},
	{dir: "internal/watcher", only: []string{}},
	{dir: "internal/golden", only: []string{}},
	{dir: "internal/needs", only: []string{}},
	{dir: "internal/arch", only: []string{}},

	// What is said on the wire.
	{dir: "api/forgeyard/v1"},
	{dir: "api/forgeyard/v1/forgeyardv1connect"},
	{dir: "api/render"},
	{dir: "api/wire"},

	// The rules, and around each the providers of its services.
	{dir: "job/machine", pure: true},
	{dir: "job", pure: true},
	{dir: "cas", pure: true, context: true},
	{dir: "cas/castest"},
	{dir: "cas/disk/index", only: []string{}},
	{dir: "cas/disk"},
	{dir: "cas/peer/bulk"},
	{dir: "cas/peer"},
	{dir: "cas/tree"},
	{dir: "cas/layer"},
	{dir: "cas/scrub"},
	{dir: "cas/remote"},
	{dir: "cas/bundle"},
	{dir: "cas/cacheapi"},
	{dir: "cas/cacheapi/grpcapi"},
	{dir: "cas/cacheapi/httpapi"},
	{dir: "cas/gocache", only: []string{".", "internal/durable"}},
	{dir: "lease", pure: true},
	{dir: "checkpoint", pure: true},
	{dir: "checkpoint/cursor", pure: true},
	{dir: "checkpoint/capture"},
	{dir: "devices", pure: true},
	{dir: "devices/serial"},
	{dir: "devices/supervisor"},

	// The site: what it allows, what it is, who orders it, how it talks.
	{dir: "sitecfg", pure: true},
	{dir: "site", pure: true},
	{dir: "site/backup", pure: true},
	{dir: "site/provenance", pure: true},
	// The log orders opaque commands and knows nothing of what they mean.
	{dir: "consensus/seam", only: []string{}},
	{dir: "consensus/carry", only: []string{"."}},
	{dir: "consensus/roll", pure: true, only: []string{".", "internal/invariant", "internal/cborx"}},
	{dir: "consensus", only: []string{".", "internal/invariant", "internal/cborx", "internal/clock", "consensus/seam", "consensus/carry", "consensus/roll"}},
	{dir: "mesh", never: []string{"consensus", "site", "lease", "job", "checkpoint", "devices"}},
	{dir: "uplink/reckon", pure: true},
	{dir: "uplink"},
	{dir: "uplink/central", never: []string{"consensus"}},

	// One node. The agent and the controllers decide on either side of the log, and
	// meet only there: neither has the other's rules in reach (decision 11).
	{dir: "node/controllers", pure: true, never: []string{"node/agent"}},
	{dir: "node/agent", pure: true, never: []string{"node/controllers"}},
	{dir: "node/pressure", pure: true, only: []string{}},
	{dir: "node/fitness", pure: true, only: []string{"job"}},
	{dir: "node/capability", never: []string{"consensus", "mesh"}},
	{dir: "node/executor/seccomp", pure: true, only: []string{"."}},
	{dir: "node/executor/users", only: []string{"."}},
	{dir: "node/executor", never: []string{"consensus", "mesh", "site"}},
	{dir: "node/executor/cgroup", never: []string{"consensus", "mesh", "site"}},
	{dir: "node/executor/ptree", never: []string{"consensus", "mesh", "site"}},
	{dir: "node/executor/exectest", never: []string{"consensus", "mesh", "site"}},
	{dir: "node/executor/process", never: []string{"consensus", "mesh", "site"}},
	{dir: "node/executor/sitenet", never: []string{"consensus", "mesh", "site"}},
	{dir: "node/executor/sandbox", never: []string{"consensus", "mesh", "site"}},
	{dir: "node/executor/ender", never: []string{"consensus", "mesh", "site"}},
	{dir: "node/executor/keeper", never: []string{"consensus", "mesh", "site"}},
	{dir: "node/preempt", only: []string{"."}},
	{dir: "node/trace", only: []string{"cas"}},
	{dir: "node/secrets", never: []string{"consensus", "node/runner"}},
	{dir: "node/runner/redact", only: []string{}},
	{dir: "node/runner/quota", only: []string{"."}},
	{dir: "node/runner/telling", only: []string{".", "internal/cborx", "internal/strictyaml", "internal/invariant", "job"}},
	{dir: "node/runner/ownrun", never: []string{"consensus", "mesh", "site"}},
	{dir: "node/garden", never: []string{"consensus", "mesh", "site"}},
	{dir: "node/runner/spool", never: []string{"consensus", "mesh", "site"}},
	{dir: "node/runner", never: []string{"consensus", "mesh"}},
	{dir: "node/replica", never: []string{"mesh", "node/controllers", "node/agent"}},
	{dir: "node/leading", never: []string{"mesh", "node/agent", "node/runner"}},
	{dir: "node/control", never: []string{"consensus", "mesh", "node/runner"}},
	{dir: "node"},

	// Around the product.
	{dir: "simulation/explore", never: []string{"node", "mesh", "consensus"}},
	{dir: "simulation/scenario", only: []string{"."}},
	{dir: "simulation", never: []string{"node", "mesh", "consensus"}},
	{dir: "simulation/raftsim", never: []string{"node", "simulation"}},
	{dir: "internal/simrun", only: []string{"simulation"}},
	{dir: "internal/cli"},
	{dir: "internal/localsite"},
	{dir: "internal/lab"},
	{dir: "internal/demo"},
	{dir: "internal/bench/party"},
	{dir: "internal/bench/rpc", only: []string{"internal/cborx"}},
	{dir: "internal/bench/report", only: []string{}},
	{dir: "internal/bench/content"},
	{dir: "internal/bench"},
	{dir: "internal/overlay", only: []string{}},
	{dir: "cmd/fyjob", only: []string{".", "internal/invariant", "internal/cborx", "cas", "checkpoint", "checkpoint/cursor", "job"}},
	{dir: "docs/examples/registry", only: []string{}},
	{dir: "docs/examples/registry/serve", only: []string{"docs/examples/registry"}},
	{dir: "cmd/forgeyard-central"},
	{dir: "cmd/forgeyard-node"},
	{dir: "e2e"},
	{dir: "e2e/partition"},
}
