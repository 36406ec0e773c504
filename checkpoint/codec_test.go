package checkpoint_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/job/machine"
)

func sampleMarker() checkpoint.Marker {
	return checkpoint.Marker{
		V: 1, Attempt: attA, Epoch: 2, Seq: 42, Mode: job.ResumeApplication, Consistency: checkpoint.Application, Quiesced: true,
		Format: checkpoint.Format{Name: "trainer", Version: 3}, Progress: checkpoint.Progress{Unit: "step", Done: 420, Total: 1000}, EffectsOpen: []string{},
		Files: []checkpoint.File{
			{Path: "state/a & b", Size: 3, BLAKE3: cas.Sum([]byte("abc")), Mode: 0o644},
			{Path: "run.sh", Size: 1, BLAKE3: cas.Sum([]byte("x")), Mode: 0o755},
		},
	}
}

const sampleText = `{"v":1,"attempt":"01J0000000000000000000000A","epoch":2,"seq":42,"mode":"application","consistency":"application","quiesced":true,` +
	`"format":{"name":"trainer","version":3},"progress":{"unit":"step","done":420,"total":1000},"effects_open":[],"files":[` +
	`{"path":"run.sh","size":1,"blake3":"b3:2aa8cd00daca99f76150ddc95d7bc1ee9c4c4c1b9865bf5c96e3b46d4bf95b48","mode":"0755"},` +
	`{"path":"state/a & b","size":3,"blake3":"b3:6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85","mode":"0644"}]}`

// TestMarkerBytes holds the one encoding still: its digest is part of every checkpoint's
// identity.
func TestMarkerBytes(t *testing.T) {
	got := string(sampleMarker().Encode())
	want := strings.Replace(sampleText, "b3:2aa8cd00daca99f76150ddc95d7bc1ee9c4c4c1b9865bf5c96e3b46d4bf95b48", cas.Sum([]byte("x")).String(), 1)
	if got != want {
		t.Fatalf("got\n%s\nwant\n%s", got, want)
	}
	// Another library's order and blanks name the same marker.
	loose := strings.Replace(want, `"v":1,`, "", 1)
	loose = strings.TrimSuffix(loose, "}") + ",\n  \"v\": 1 }\n"
	m, err := checkpoint.ParseMarker([]byte(loose))
	if err != nil {
		t.Fatal(err)
	}
	if m.Digest() != sampleMarker().Digest() {
		t.Fatal("the same marker has two digests")
	}
}

func TestParseMarkerRefuses(t *testing.T) {
	good := string(sampleMarker().Encode())
	for name, edit := range map[string][2]string{
		"unknown key":       {`"v":1`, `"v":1,"extra":1`},
		"duplicate key":     {`"epoch":2`, `"epoch":1,"epoch":2`},
		"folded key":        {`"epoch":2`, `"Epoch":2`},
		"kelvin key":        {`"blake3":`, "\"bla\u212ae3\":"},
		"something behind":  {`"0644"}]}`, `"0644"}]}{}`},
		"array":             {`{"v":1`, `[{"v":1`},
		"version":           {`"v":1`, `"v":2`},
		"epoch 0":           {`"epoch":2`, `"epoch":0`},
		"fraction":          {`"epoch":2`, `"epoch":2.5`},
		"seq 0":             {`"seq":42`, `"seq":0`},
		"seq too large":     {`"seq":42`, `"seq":1000000`},
		"attempt":           {`01J0000000000000000000000A`, `../../etc`},
		"parent after":      {`"seq":42`, `"seq":42,"parent_seq":42`},
		"absolute":          {`"run.sh"`, `"/run.sh"`},
		"dot dot":           {`"run.sh"`, `"a/../../run.sh"`},
		"unclean":           {`"run.sh"`, `"a//run.sh"`},
		"backslash":         {`"run.sh"`, `"a\\run.sh"`},
		"nul":               {`"run.sh"`, `"a\u0000run.sh"`},
		"the marker":        {`"run.sh"`, `".fy-checkpoint.json"`},
		"twice":             {`"run.sh"`, `"state/a & b"`},
		"file and dir":      {`"run.sh"`, `"state"`},
		"deep":              {`"run.sh"`, `"` + strings.Repeat("a/", 64) + `b"`},
		"negative size":     {`"size":3`, `"size":-3`},
		"huge size":         {`"size":3`, `"size":9223372036854775807`},
		"size and digest":   {`"size":3`, `"size":0`},
		"mode":              {`"0755"`, `"4755"`},
		"mode number":       {`"0755"`, `493`},
		"no digest":         {cas.Sum([]byte("x")).String(), ``},
		"negative progress": {`"done":420`, `"done":-1`},
		"not utf-8":         {`trainer`, "\xff"},
	} {
		bad := strings.Replace(good, edit[0], edit[1], 1)
		if bad == good {
			t.Fatalf("%s: the edit changes nothing", name)
		}
		if _, err := checkpoint.ParseMarker([]byte(bad)); forgeyard.KindOf(err) != forgeyard.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := checkpoint.ParseMarker(bytes.Repeat([]byte(" "), checkpoint.MaxMarkerBytes+1)); forgeyard.KindOf(err) != forgeyard.Limit {
		t.Errorf("too long: %v", err)
	}
}

func authority() forgeyard.Authority {
	return forgeyard.Authority{Job: jobA, Attempt: attA, Spec: cas.Sum([]byte("spec")), Runner: nodeA, Fence: forgeyard.Fence{Incarnation: 1, Epoch: 2}}
}

// A checkpoint is what its manifest binds: the digest of that is its name, and whatever else
// is bound is another checkpoint (CK-001, CK-042, CK-370).
func TestManifestBindsAll(t *testing.T) {
	c := contract(t, declared(), checkpoint.Limits{})
	bind := checkpoint.Binding{Authority: authority(), Contract: c.ID, OS: "linux", Arch: "amd64"}
	m, err := checkpoint.NewManifest(sampleMarker(), cas.Sum([]byte("tree")), bind)
	if err != nil {
		t.Fatal(err)
	}
	back, err := checkpoint.ParseManifest(m.Encode())
	if err != nil || back != m || back.ID() != m.ID() {
		t.Fatalf("%+v, %v", back, err)
	}
	// CK-047, CK-068: anything else that was bound gives another identity.
	ids := map[forgeyard.Digest]string{m.ID(): "same"}
	for name, edit := range map[string]func(*checkpoint.Manifest){
		"job": func(m *checkpoint.Manifest) { m.Job = jobB }, "attempt": func(m *checkpoint.Manifest) { m.Attempt = attB },
		"epoch": func(m *checkpoint.Manifest) { m.Epoch++ }, "seq": func(m *checkpoint.Manifest) { m.Seq++ },
		"spec": func(m *checkpoint.Manifest) { m.Spec[0]++ }, "contract": func(m *checkpoint.Manifest) { m.Contract[0]++ },
		"os": func(m *checkpoint.Manifest) { m.OS = "x" }, "arch": func(m *checkpoint.Manifest) { m.Arch = "x" },
		"payload": func(m *checkpoint.Manifest) { m.Payload[0]++ }, "bytes": func(m *checkpoint.Manifest) { m.Bytes++ },
		"files": func(m *checkpoint.Manifest) { m.Files++ }, "marker": func(m *checkpoint.Manifest) { m.Marker[0]++ },
		"parent": func(m *checkpoint.Manifest) { m.Parent[0]++ }, "consistency": func(m *checkpoint.Manifest) { m.Consistency = checkpoint.Crash },
		"format": func(m *checkpoint.Manifest) { m.Format.Version++ }, "sensitivity": func(m *checkpoint.Manifest) { m.Sensitivity = checkpoint.Public },
		"progress": func(m *checkpoint.Manifest) { m.Progress.Done++ }, "runner": func(m *checkpoint.Manifest) { m.Runner = "" },
	} {
		n := m
		edit(&n)
		if other, twice := ids[n.ID()]; twice {
			t.Errorf("%s has the identity of %s", name, other)
		}
		ids[n.ID()] = name
	}
	stale := bind
	stale.Authority.Fence.Epoch = 3
	if _, err := checkpoint.NewManifest(sampleMarker(), cas.Sum([]byte("tree")), stale); forgeyard.KindOf(err) != forgeyard.Stale {
		t.Errorf("a marker of epoch 2 under the authority of epoch 3: %v", err)
	}
}

// What a job declares of its checkpoints. No mode saves a machine's memory, so none can hold
// the secrets that were in it (CK-185).
func TestContract(t *testing.T) {
	bare := job.Resume{Mode: job.ResumeApplication}
	c := contract(t, bare, checkpoint.Limits{MaxBytes: 100, MaxWindow: time.Second, MaxKeep: 2, MinInterval: time.Minute})
	if c.ExitCode != 85 || c.RejectCode != 86 || c.MaxBytes != 100 || c.Window != time.Second || c.Keep != 2 || c.Minimum != checkpoint.Application || c.Interval != 0 {
		t.Errorf("defaults and limits: %+v", c)
	}
	if d := contract(t, bare, checkpoint.Limits{}); d.ID != c.ID || d.MaxBytes != checkpoint.DefaultMaxBytes {
		t.Errorf("a site's limits changed the contract's id, or there is no default: %+v", d)
	}
	files := bare
	files.Checkpoint.Files = []string{"state/deep/", "state/", "a.bin", "state"}
	if c := contract(t, files, checkpoint.Limits{}); strings.Join(c.Files, " ") != "a.bin state" {
		t.Errorf("files: %q", c.Files)
	}
	if contract(t, job.Resume{}, checkpoint.Limits{}).Resumable() {
		t.Error("nothing declared is resumable")
	}
	for name, edit := range map[string]func(*job.Resume){
		"mode":       func(r *job.Resume) { r.Mode = "vm" },
		"exit 0":     func(r *job.Resume) { r.Checkpoint.ExitCode = 1 },
		"exit large": func(r *job.Resume) { r.Checkpoint.ExitCode = 137 },
		"same codes": func(r *job.Resume) { r.Checkpoint.RejectCode = 85 },
		"signal":     func(r *job.Resume) { r.Checkpoint.Signal = "KILL" },
		"absolute":   func(r *job.Resume) { r.Checkpoint.Files = []string{"/etc"} },
		"dot dot":    func(r *job.Resume) { r.Checkpoint.Files = []string{"../x/"} },
		"all":        func(r *job.Resume) { r.Checkpoint.Files = []string{"./"} },
		"negative":   func(r *job.Resume) { r.Checkpoint.MaxBytes = -1 },
	} {
		r := bare
		edit(&r)
		if _, err := checkpoint.NewContract(r, checkpoint.Limits{}); forgeyard.KindOf(err) != forgeyard.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// CK-002, CK-045, CK-046: the contract's identity is that of the declaration. Whatever of it is
// said otherwise is another contract, and what it allows of the machine is part of it.
func TestContractIdentity(t *testing.T) {
	base := declared()
	ids := map[forgeyard.Digest]string{contract(t, base, checkpoint.Limits{}).ID: "the same"}
	for name, edit := range map[string]func(*job.Resume){
		"mode": func(r *job.Resume) {
			r.Mode, r.Isolation, r.Checkpoint.Results = job.ResumeFramework, job.Suite, 5
		},
		"format name":    func(r *job.Resume) { r.FormatName += "x" },
		"format version": func(r *job.Resume) { r.FormatVersion++ },
		"interval":       func(r *job.Resume) { r.Checkpoint.Interval += time.Second },
		"window":         func(r *job.Resume) { r.Checkpoint.Window += time.Second },
		"on cancel":      func(r *job.Resume) { r.Checkpoint.OnCancel = !r.Checkpoint.OnCancel },
		"on notice":      func(r *job.Resume) { r.Checkpoint.NoneOnNotice = true },
		"keep":           func(r *job.Resume) { r.Checkpoint.Keep++ },
		"max age":        func(r *job.Resume) { r.Checkpoint.MaxAge += time.Hour },
		"files":          func(r *job.Resume) { r.Checkpoint.Files = append(r.Checkpoint.Files, "another") },
		"compatibility":  func(r *job.Resume) { r.Compatibility.CPU = machine.Exact },
		"sensitivity":    func(r *job.Resume) { r.Sensitivity = job.SensConfidential },
	} {
		r := base
		edit(&r)
		id := contract(t, r, checkpoint.Limits{}).ID
		if other, twice := ids[id]; twice {
			t.Errorf("another %s is %s contract", name, other)
		}
		ids[id] = name
	}
}

func TestEnvHidesRestoreWhenFresh(t *testing.T) {
	c := contract(t, declared(), checkpoint.Limits{})
	env := c.Env(checkpoint.Epoch{Site: "S", Attempt: attA, Epoch: 1, CkptDir: "/c", CtlDir: "/t", StopGrace: 1500 * time.Millisecond})
	if _, set := env[checkpoint.EnvRestoreDir]; set || env[checkpoint.EnvFence] != "S."+string(attA)+".1" || env[checkpoint.EnvStopGrace] != "2" || env[checkpoint.EnvFormat] != "trainer:3" {
		t.Errorf("%v", env)
	}
	at := checkpoint.Commit{Seq: 7, Manifest: cas.Sum([]byte("m"))}
	env = c.Env(checkpoint.Epoch{Attempt: attA, Epoch: 2, RestoreDir: "/r", Restore: &at})
	if env[checkpoint.EnvRestoreDir] != "/r" || env[checkpoint.EnvRestoreSeq] != "7" || env[checkpoint.EnvRestoreID] != at.Manifest.String() {
		t.Errorf("%v", env)
	}
}

// TestHistoryIsBounded: the log's state does not grow with a job that commits for ever.
func TestHistoryIsBounded(t *testing.T) {
	var h []checkpoint.Commit
	for i := 1; i <= 3*checkpoint.MaxHistory; i++ {
		var err error
		h, err = checkpoint.Record(h, checkpoint.Commit{Seq: i, Epoch: 1, Attempt: attA, Manifest: cas.Sum([]byte{byte(i), byte(i >> 8)}), Payload: cas.Sum(nil), Marker: cas.Sum(nil), Consistency: checkpoint.Application})
		if err != nil {
			t.Fatal(err)
		}
		if best, ok, _ := checkpoint.Select(h); !ok || best.Seq != i || len(h) > checkpoint.MaxHistory {
			t.Fatalf("after %d commits: %d kept, best %d", i, len(h), best.Seq)
		}
		if i == 5 {
			if h, err = checkpoint.Quarantine(h, h[4].Manifest, "x"); err != nil {
				t.Fatal(err)
			}
			i++ // The next slot; five is used.
		}
	}
	if h[0].State != checkpoint.Good {
		t.Error("a quarantined commit outlived good ones")
	}
}

func FuzzParseMarker(f *testing.F) {
	f.Add(sampleMarker().Encode())
	f.Add([]byte(`{"v":1,"files":[{"path":"a"}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := checkpoint.ParseMarker(b)
		if err != nil {
			return
		}
		again, err := checkpoint.ParseMarker(m.Encode())
		if err != nil || again.Digest() != m.Digest() || !bytes.Equal(again.Encode(), m.Encode()) {
			t.Fatalf("%v: what was parsed does not survive its own encoding", err)
		}
	})
}

func FuzzParseManifest(f *testing.F) {
	m, err := checkpoint.NewManifest(sampleMarker(), cas.Sum([]byte("tree")), checkpoint.Binding{Authority: authority(), Contract: cas.Sum(nil), OS: "linux", Arch: "amd64"})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(m.Encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, err := checkpoint.ParseManifest(b); err == nil && (!bytes.Equal(m.Encode(), b) || m.ID() != cas.Sum(b)) {
			t.Fatal("accepted bytes that it would not write")
		}
	})
}

// FuzzParseControl covers every file of the control directory.
func FuzzParseControl(f *testing.F) {
	f.Add(checkpoint.Request{Seq: 1, Kind: checkpoint.StopPreempt, Reason: "spot", WantCheckpoint: true, Deadline: time.Unix(1e9, 0).UTC()}.Encode())
	f.Add(checkpoint.Message{N: 1, Kind: checkpoint.MessageCommit, Attempt: attA, Epoch: 1, Seq: 1}.Encode())
	f.Add(checkpoint.Message{N: 1, Kind: checkpoint.MessageEffectDone, Attempt: attA, Epoch: 1, Effect: &checkpoint.EffectNote{Key: "a", Evidence: []byte("x")}}.Encode())
	f.Add(checkpoint.Answer{Seq: 1, Status: checkpoint.StatusCommitted}.Encode())
	f.Add(checkpoint.CriticalSection{PID: 2, MaxMillis: 20_000}.Encode())
	f.Add(checkpoint.Heartbeat{Beat: 1, Progress: checkpoint.Progress{Done: 1, Total: 2}}.Encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		again := func(what string, first []byte, err error) {
			if err != nil || first == nil {
				t.Fatalf("%s: what was parsed does not survive its own encoding: %v", what, err)
			}
		}
		if r, err := checkpoint.ParseRequest(b); err == nil {
			_, err := checkpoint.ParseRequest(r.Encode())
			again("request", r.Encode(), err)
		}
		if m, err := checkpoint.ParseMessage(b); err == nil {
			_, err := checkpoint.ParseMessage(m.Encode())
			again("message", m.Encode(), err)
		}
		if a, err := checkpoint.ParseAnswer(b); err == nil {
			_, err := checkpoint.ParseAnswer(a.Encode())
			again("answer", a.Encode(), err)
		}
		if c, err := checkpoint.ParseCritical(b); err == nil {
			_, err := checkpoint.ParseCritical(c.Encode())
			again("critical", c.Encode(), err)
		}
		if h, err := checkpoint.ParseHeartbeat(b); err == nil {
			_, err := checkpoint.ParseHeartbeat(h.Encode())
			again("heartbeat", h.Encode(), err)
		}
	})
}
