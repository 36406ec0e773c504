//go:build linux

package runner

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/internal/golden"
)

// TestStateFileOfVersion1: the process after an upgrade must find, and end, what the one
// before it started, and deliver what that one finished (07§94, 07§249). There is what that
// takes and no more: whose it is, where it works, its processes with their births, how far
// it is; not how it came there (RA-170, RA-176).
func TestStateFileOfVersion1(t *testing.T) {
	stateFile(t, "testdata/state-v1-user.json") // with the user that it was lent
	was, name := stateFile(t, "testdata/state-v1.json", "state.User")
	other := bytes.Replace(was, []byte(`"version": 1`), []byte(`"version": 2`), 1)
	if err := os.WriteFile(name, other, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readState(name); forgeyard.KindOf(err) != forgeyard.Invalid {
		t.Fatalf("a file of version 2: %v", err)
	}
}

// stateFile holds what is written today against a file of the past, and reads that.
func stateFile(t *testing.T, past string, later ...string) (was []byte, name string) {
	t.Helper()
	var want state
	golden.Fill(t, &want, later...)
	want.Version = stateVersion
	today, err := json.MarshalIndent(want, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	name = filepath.Join(t.TempDir(), "a-1"+stateSuffix)
	was = golden.Text(t, past, append(today, '\n'))
	if err := os.WriteFile(name, was, 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := readState(name); err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("%+v %v", got, err)
	}
	return was, name
}

// FuzzReadState: whatever stands in a state file, it is a state or an error, and a state
// is written and read as the same (RA-473).
func FuzzReadState(f *testing.F) {
	for _, past := range []string{"testdata/state-v1.json", "testdata/state-v1-user.json"} {
		if b, err := os.ReadFile(past); err == nil {
			f.Add(b)
		}
	}
	f.Add([]byte(`{"version":1}`))
	f.Add([]byte(`{"version":1,"authority":{"Fence":{"Epoch":18446744073709551615}},"grants":[{}]}`))
	name := filepath.Join(f.TempDir(), "a-1"+stateSuffix)
	f.Fuzz(func(t *testing.T, b []byte) {
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := readState(name)
		if err != nil {
			if k := forgeyard.KindOf(err); k != forgeyard.Corrupt && k != forgeyard.Invalid {
				t.Fatal(err)
			}
			return
		}
		again, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, again, 0o600); err != nil {
			t.Fatal(err)
		}
		second, err := readState(name)
		if err != nil {
			t.Fatal(err)
		}
		if b, err := json.Marshal(second); err != nil || !bytes.Equal(b, again) {
			t.Fatalf("%v: %s, then %s", err, again, b)
		}
	})
}

// RA-406: an order whose kind nobody knows is none, however hard it is pressed: nothing that
// comes over the wire can make a runner do what is not in the list (RA-003).
func TestUnknownOrderIsNone(t *testing.T) {
	for _, kind := range []checkpoint.StopKind{"", "run reboot", "Cancel"} {
		if n := (order{kind: kind, reason: "so", force: true}).strength(); n != 0 {
			t.Errorf("%q has strength %d", kind, n)
		}
	}
	if (order{kind: checkpoint.StopCancel}).strength() <= (order{kind: checkpoint.StopDrain}).strength() {
		t.Error("K07: a person's cancel wins over a reclaim")
	}
}

// CK-133, CK-333: cancelling, suspending, reclaiming and losing are four things. A person (CK-115),
// a successor (CK-116), the time that the work was given (CK-117) and a matter of security
// (CK-120) end the job, and none of them hands it back to run elsewhere (CK-132). A shutdown
// (CK-121), a reclaim (CK-122) and an authority that ends hand it back and do not end it;
// so does a suspend. Whoever ends it wins over whoever hands it back, and security over all.
func TestStopsAreToldApart(t *testing.T) {
	kinds := []struct {
		kind        checkpoint.StopKind
		gives, ends bool
	}{
		{checkpoint.StopCheckpoint, false, false},
		{checkpoint.StopSuspend, true, false},
		{checkpoint.StopPreempt, true, false}, {checkpoint.StopDrain, true, false}, {checkpoint.StopAuthority, true, false},
		{checkpoint.StopTimeout, false, true}, {checkpoint.StopCancel, false, true}, {checkpoint.StopSuperseded, false, true},
		{checkpoint.StopSecurity, false, true},
	}
	last := 0
	for _, k := range kinds {
		o := order{kind: k.kind}
		if o.gives() != k.gives || o.ends() != k.ends {
			t.Errorf("%s: gives %v, ends %v", k.kind, o.gives(), o.ends())
		}
		if o.strength() < last {
			t.Errorf("%s is weaker than what stands before it", k.kind)
		}
		last = o.strength()
	}
}
