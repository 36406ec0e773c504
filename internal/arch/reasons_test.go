package arch

// reasons are what may exceed its budget, and why dividing it would make it worse.
// An entry that is no longer needed fails the test.
//
// Keys: "dir: Function", "dir: (*Type).Method", "dir/file.go", "dir/".
var reasons = map[string]string{
	"cmd/forgeyard-node/": "one file for each command noun, and no logic of the product: it grows with the nouns",
	"cas/disk/":           "one lock order over rows, partials, quarantine and collection; the database below has a package of its own",
	"cas/peer/":           "links, lanes and sessions share one lock order; the ask protocol alone could go, and is read together with them",
	"checkpoint/capture/": "what takes a payload and what brings it back are read side by side: each refusal of the one is a damage that the other finds",
	"consensus/":          "the guards are read against one life of a group; its stores get a package when there is a second kind",
	"job/":                "one document, its checks and what runners and people are told of it: every key is read, defaulted and refused beside the others",
	"mesh/":               "identity and enrolment are the natural cut; they share the secret type and the file rules with the rest",
	"node/control/":       "one file for each service of the API, around one gate and one set of finders: it grows with the services",
	"node/":               "the composition of all parts: many short files, one per loop or service, around one struct",
	"node/runner/":        "the life of one attempt: what it prepares, watches, stops and hands back is one order of things",
	"simulation/":         "model and checkers of one run, a file each: the checkers watch moments inside the model; the language of scenarios is a package of its own",
	"simulation/raftsim/": "one package on purpose, like simulation: the machines, what stands around the real parts, and the checkers of one seed, a file each",
	"uplink/central/":     "an exchange is one transaction over the rows of one site: what it reads, judges and answers is one order of things",
	"site/":               "one Apply: commands, state and rules change together",
}

// skipReasons are the tests that skip for another reason than what the machine lacks.
var skipReasons = map[string]string{
	"node/runner: TestCrashing":           "it is the child of another test",
	"node/executor/sandbox: TestRootless": "TestConformance already runs without root there",
	"node/runner: TestLayersRootless":     "the tests that it runs as an ordinary user already ran as one",
	"node: TestDataDirIsPrivate":          "for Windows, which keeps no modes",
	"node: TestListenPrivate":             "for Windows, which keeps no modes",
	"e2e/partition: TestHistory":          "it reads a history that somebody kept",
	"simulation: TestFaults":              "rare faults are looked for by make sim-long",
}
