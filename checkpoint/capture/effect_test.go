package capture

import (
	"errors"
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
	// What nobody can read has one who answers it: the watcher, where there is one.
	if err := os.WriteFile(filepath.Join(ctl, checkpoint.OutboxName, checkpoint.MessageName(3)), []byte("no"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := EffectMessages(ctl, attempt, 2, false); err != nil || answer(3) != "" {
		t.Fatalf("%v, answered %q", err, answer(3))
	}
	post(2, 1)
	if err := os.WriteFile(filepath.Join(ctl, checkpoint.OutboxName, checkpoint.MessageName(3)), []byte("no"), 0o644); err != nil {
		t.Fatal(err)
	}
	all, err := EffectMessages(ctl, attempt, 2, true)
	if err != nil || len(all) != 1 || all[0].N != 1 {
		t.Fatalf("%+v %v", all, err)
	}
	if answer(1) != "" || answer(2) != "stale" || answer(3) != "rejected" {
		t.Errorf("%q %q %q", answer(1), answer(2), answer(3))
	}
}

// A message that goes while the outbox is read, since another has answered it, is no message:
// an answer that was given is not replaced by one about a file that is not there.
func TestWhatIsAnsweredMeanwhileIsNoMessage(t *testing.T) {
	ctl := t.TempDir()
	if err := Prepare(ctl); err != nil {
		t.Fatal(err)
	}
	outbox := filepath.Join(ctl, checkpoint.OutboxName)
	m := checkpoint.Message{Kind: checkpoint.MessageMark, Attempt: "01J0000000000000000000000A", Epoch: 1, Reason: "m"}
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for n := 1; ; n = n%64 + 1 {
			select {
			case <-stop:
				return
			default:
			}
			m.N = n
			tmp, name := filepath.Join(ctl, "t"), filepath.Join(outbox, checkpoint.MessageName(n))
			if err := errors.Join(os.WriteFile(tmp, m.Encode(), 0o644), os.Rename(tmp, name), os.Remove(name)); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	for range 1000 {
		all, err := ReadOutbox(ctl)
		if err != nil {
			t.Error(err)
		}
		for _, d := range all {
			if d.Err != nil {
				t.Error(d.Err)
			}
		}
	}
	close(stop)
	<-ended
}
