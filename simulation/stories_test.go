package simulation

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/forgeyard/forgeyard-node/simulation/scenario"
)

func storyFiles(t *testing.T) map[string][]byte {
	t.Helper()
	names, err := filepath.Glob("testdata/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]byte{}
	for _, n := range names {
		b, err := os.ReadFile(n)
		if err != nil {
			t.Fatal(err)
		}
		out[filepath.Base(n)] = b
	}
	return out
}

// TestStoriesCatch: a story of a rule is broken when that rule is, so that no story only
// looks as if it watched.
func TestStoriesCatch(t *testing.T) {
	byName := map[string]seeded{}
	for _, f := range seededFaults() {
		byName[f.name] = f
	}
	files := storyFiles(t)
	for file, fault := range map[string]string{
		"e01-records-cut-off.txt":           "the daemon acknowledges before its disk has it",
		"e04-replace-false.txt":             "that a job asks for no replacement is not stored with its lease",
		"e08-two-runners.txt":               "a stale completion is taken for the current one",
		"e13-status-lost.txt":               "an acknowledgement does not trim the outbox",
		"e22-daemon-returns.txt":            "a contact does not wake what waited for it",
		"removed-while-another-is-dead.txt": "a removed node is switched off while its vote counts",
		"removed-nodes-devices.txt":         "a removed node's devices stay in the pool",
		"power-loss-of-all.txt":             "an entry is acknowledged before it is on disk",
		"e06-agent-restarts.txt":            "a workload outlives its agent",
		"within-allowance-elections.txt":    "a new leader counts the silence from zero",
		"restored-device-used-since.txt":    "a restored site takes a device that was used since for clean",
		"e31-recovered-by-force.txt":        "a recovered site takes a new session for the end of the last lease",
		"revoked-protected.txt":             "a revocation frees protected work at once",
		"e09-copied-data-dir.txt":           "a copied machine ends at once",
		"e31-restored-device.txt":           "a restored site takes a device that was used since for clean",
		"shorter-leases.txt":                "the next epoch is counted by the old terms",
		"hard-end.txt":                      "a contact renews a hard end",
		"upgraded-one-by-one.txt":           "a program goes on that the log's format has left behind",
		"chaos-lost-in-a-checkpoint.txt":    "a copy is acknowledged before it is on disk",
		"chaos-upload-cut.txt":              "a copy is counted that was never made",
		"chaos-leader-lost-in-a-resume.txt": "pins of jobs that go on are let go",
		"chaos-old-runner-returns.txt":      "the epoch of a checkpoint is not checked",
		"chaos-preemption-storm.txt":        "two epochs may be current",
		"chaos-region-cut.txt":              "an epoch restores a state that was not committed",
	} {
		t.Run(file, func(t *testing.T) {
			sc, err := scenario.Parse(file, files[file])
			if err != nil {
				t.Fatal(err)
			}
			f, ok := byName[fault]
			if !ok {
				t.Fatalf("no fault %q", fault)
			}
			if r := f.play(sc); r.Broken == nil {
				t.Errorf("%q is not seen", fault)
			} else {
				t.Log(r.Broken)
			}
		})
	}
}
