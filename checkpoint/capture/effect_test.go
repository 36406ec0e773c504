package capture

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/checkpoint"
)

// A message about an effect is for whoever keeps the ledger: the watcher of checkpoints, which
// may be busy for minutes, neither answers nor drops it. One of another epoch is stale at once.
func TestEffectMessagesAreLeftAlone(t *testing.T) {
	const attempt = forgeyard.AttemptID("01J0000000000000000000000A")
	ctl, ckpt := t.TempDir(), t.TempDir()
	if err := Prepare(ctl); err != nil {
		t.Fatal(err)
	}
	post := func(n int, epoch uint64) {
		t.Helper()
		m := checkpoint.Message{N: n, Kind: checkpoint.MessageEffectBegin, Attempt: attempt, Epoch: epoch, Effect: &checkpoint.EffectNote{Key: "a", Idem: "k"}}
		if err := os.WriteFile(filepath.Join(ctl, checkpoint.OutboxName, checkpoint.MessageName(n)), m.Encode(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	answer := func(n int) string {
		b, err := os.ReadFile(filepath.Join(ctl, checkpoint.InboxName, checkpoint.MessageName(n)))
		if err != nil {
			return ""
		}
		a, err := checkpoint.ParseAnswer(b)
		if err != nil {
			t.Fatal(err)
		}
		return string(a.Status)
	}
	post(1, 2)
	if found, err := NewWatcher(ckpt, ctl, attempt, 2).Poll(); err != nil || !found.empty() || answer(1) != "" {
		t.Fatalf("%+v %v, answered %q", found, err, answer(1))
	}
	post(2, 1)
	if err := os.WriteFile(filepath.Join(ctl, checkpoint.OutboxName, checkpoint.MessageName(3)), []byte("no"), 0o644); err != nil {
		t.Fatal(err)
	}
	all, err := EffectMessages(ctl, attempt, 2)
	if err != nil || len(all) != 1 || all[0].N != 1 {
		t.Fatalf("%+v %v", all, err)
	}
	if answer(1) != "" || answer(2) != "stale" || answer(3) != "rejected" {
		t.Errorf("%q %q %q", answer(1), answer(2), answer(3))
	}
}
