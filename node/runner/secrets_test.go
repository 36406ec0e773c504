//go:build linux

package runner

import (
	"bytes"
	"context"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/internal/needs"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/executor"
	"github.com/forgeyard/forgeyard-node/node/executor/users"
	"github.com/forgeyard/forgeyard-node/node/runner/redact"
	"github.com/forgeyard/forgeyard-node/node/runner/spool"
)

// vault is a provider that remembers what it gave.
type vault struct {
	values map[string]string
	given  [][]byte
}

func (v *vault) Has(name string) error {
	if _, ok := v.values[name]; !ok {
		return forgeyard.Errorf("secret", forgeyard.NotFound, "no secret %q", name)
	}
	return nil
}

func (v *vault) Resolve(_ context.Context, name string) ([]byte, error) {
	if err := v.Has(name); err != nil {
		return nil, err
	}
	b := []byte(v.values[name])
	v.given = append(v.given, b)
	return b, nil
}

const (
	pinValue = "9f2-hunter-2-9f2"
	keyValue = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqh\n-----END KEY-----\n"
)

func secretSpec(steps ...string) job.Spec {
	s := spec(steps...)
	s.Secrets = []job.SecretRef{{Name: "prod/pin", Env: "PIN"}, {Name: "KEY", File: "key.pem"}}
	return s
}

// strict says that there is a sandbox with files of its own.
func (b *bench) strict() bool {
	return b.r.cfg.Executors[job.SandboxStrict].Kind() == job.SandboxStrict
}

// withVault gives secrets to a runner with sandboxes alone.
func withVault(v *vault) func(*Config) {
	return func(c *Config) {
		c.Secrets = v
		delete(c.Executors, job.SandboxProcess)
	}
}

// together and apart are an executor with all jobs as one user, and with one for each.
type together struct{ executor.Executor }

func (together) Users() *users.Pool { return nil }

type apart struct{ executor.Executor }

func (apart) Users() *users.Pool {
	p, err := users.New(users.Config{First: 1, Count: 2})
	if err != nil {
		panic(err)
	}
	return p
}

// RA-221, RA-222, RA-223, RA-224, RA-248, RA-253, RA-278, RA-557, CK-407: a step has its secrets, one as
// a variable and one as a file that is on no disk; its log has neither value in any spelling
// that is looked for, and neither has a file of the runner's, the store's included; the
// values are cleared when the attempt has ended.
func TestSecrets(t *testing.T) {
	v := &vault{values: map[string]string{"prod/pin": pinValue + "\n", "KEY": keyValue}}
	var node bytes.Buffer
	var stored *reader
	b := newBench(t, withVault(v), func(c *Config) {
		stored = &reader{Store: c.Store}
		c.Log, c.Store, c.PackLogs = slog.New(slog.NewTextHandler(&node, nil)), stored, func() bool { return true }
	})
	if !b.strict() {
		needs.Lacking(t, "no sandbox on this machine: a secret as a file needs one")
	}
	s := secretSpec(
		`i=0; while [ $i -lt 200 ]; do echo "a line before the pin $PIN"; i=$((i+1)); done`, // worth packing
		`echo ${#PIN}; grep -c MIIE "$FORGEYARD_SECRETS_DIR/key.pem"; stat -c %a /work/secrets/key.pem`,
		`printf %s "$PIN"; echo; printf "$PIN" | base64; cat /work/secrets/key.pem >&2; printf 9f2-hunt; sleep 0.2; echo er-2-9f2 end`,
		`( echo > /work/secrets/key.pem ) 2>/dev/null || echo "cannot change it"; for p in 1 2 self; do tr '\0' '\n' < /proc/$p/cmdline | grep -c "$PIN" || true; done; echo made > out`,
	)
	s.Outputs = []job.OutputDecl{{Path: "out"}}
	r, _, a := b.run(s)
	text := b.text(a)
	if r.Outcome != job.OutcomeDone {
		t.Fatalf("%+v\n%s", r, text)
	}
	text += b.stdout(a) // without the lines of stderr, which come between as they like
	for _, want := range []string{"16\n1\n600\n", "[redacted prod/pin]\n[redacted prod/pin]\n", "[redacted KEY]", "[redacted prod/pin] end", "cannot change it\n0\n0\n0\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in the log:\n%s", want, text)
		}
	}
	for _, g := range v.given {
		if !bytes.Equal(g, make([]byte, len(g))) {
			t.Errorf("a value of %d bytes is still in memory", len(g))
		}
	}
	for what, has := range map[string]string{"log": text, "log of the node": node.String()} {
		if strings.Contains(has, "hunter") || strings.Contains(has, "MIIE") {
			t.Errorf("a value is in the %s:\n%s", what, has)
		}
	}
	// Small objects are packed inside the store's index, and parts of a log in themselves: raw files
	// show neither.
	packed := 0
	for _, raw := range stored.got {
		said := unpackedLog(raw)
		if said != nil && bytes.HasPrefix(raw, []byte("FYLOG\x00\x02")) {
			packed++
		}
		if holdsValue(raw) || holdsValue(said) {
			t.Errorf("a value is in the store: %q", raw)
		}
	}
	if packed == 0 || len(stored.got) <= packed {
		t.Errorf("%d objects were stored, %d of them packed parts of the log", len(stored.got), packed)
	}
	found := 0
	err := filepath.WalkDir(b.dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		raw, err := os.ReadFile(p)
		found++
		if holdsValue(raw) {
			t.Errorf("a value is in %s", p)
		}
		return err
	})
	if err != nil || found == 0 {
		t.Fatalf("%d files were read: %v", found, err)
	}
}

func holdsValue(b []byte) bool {
	return bytes.Contains(b, []byte("hunter-2")) || bytes.Contains(b, []byte("MIIEvQ"))
}

// reader is a store that keeps what it was given, to be read.
type reader struct {
	cas.Store
	mu  sync.Mutex
	got [][]byte
}

func (s *reader) Put(ctx context.Context, r io.Reader, o cas.PutOptions) (cas.Ref, error) {
	b, err := io.ReadAll(r)
	if err != nil {
		return cas.Ref{}, err
	}
	s.mu.Lock()
	s.got = append(s.got, b)
	s.mu.Unlock()
	return s.Store.Put(ctx, bytes.NewReader(b), o)
}

// unpackedLog is what a part of a log says, all frames of a stream one after the other; nil: it is none.
func unpackedLog(raw []byte) []byte {
	said := map[spool.Stream][]byte{}
	for f, err := range spool.DecodeFrames(bytes.NewReader(raw)) {
		if err != nil {
			return nil
		}
		said[f.Stream] = append(said[f.Stream], f.Bytes...)
	}
	return slices.Concat(slices.Collect(maps.Values(said))...)
}

// CK-187, CK-305, CK-347: an epoch that goes on has the secrets of now, and never what was given to
// the epoch before: a value that was changed is the new one, and without one it does not begin.
func TestSecretsOfTheNextEpoch(t *testing.T) {
	v := &vault{values: map[string]string{"prod/pin": "first-pin"}}
	b := newBench(t, withVault(v))
	if !b.strict() {
		needs.Lacking(t, "no sandbox on this machine")
	}
	s := resumable([]string{"n"}, `echo "epoch $FORGEYARD_EPOCH has ${#PIN}"; echo 1 > n; [ $FORGEYARD_EPOCH -ge 2 ] || exit 85; env | grep -c first-pin || true; grep -rc first-pin $FORGEYARD_RESTORE_DIR || true`)
	s.Secrets = []job.SecretRef{{Name: "prod/pin", Env: "PIN"}}
	tk := task(s)
	tk.Checkpoints = b.book(tk)
	a := b.start(tk)
	_, end := b.wait(a)
	if text := b.text(a); end.Kind != EndCheckpoint || !strings.Contains(text, "epoch 1 has 9\n") {
		t.Fatalf("%+v %s", end, text)
	}
	if err := a.Finish(false); err != nil {
		t.Fatal(err)
	}
	v.values["prod/pin"] = "the-second-pin"
	tk.Authority.Fence.Epoch = 2
	tk.Restore = &Restore{ID: end.Checkpoint.ID, Seq: end.Checkpoint.Seq, ExitDriven: true}
	tk.Checkpoints = b.book(tk)
	a = b.start(tk)
	res, _ := b.wait(a)
	if text := b.text(a); res.Outcome != job.OutcomeDone || !strings.Contains(text, "epoch 2 has 14\n0\n") || strings.Contains(text, ":1\n") {
		t.Fatalf("%+v %s", res, text)
	}
	delete(v.values, "prod/pin")
	if err := b.r.Check(s, 0); forgeyard.KindOf(err) != forgeyard.Denied {
		t.Errorf("without its secret: %v", err)
	}
}

// A value in what would be stored ends the attempt, and nothing of it is stored (RA-222).
func TestSecretInAnOutput(t *testing.T) {
	for name, step := range map[string]string{
		"in a file": `mkdir out; printf 'a%sb' "$PIN" > out/x`, "in base64": `mkdir out; printf "xy$PIN" | base64 > out/x`, "in a name": `mkdir out; echo > "out/$PIN"`,
	} {
		t.Run(name, func(t *testing.T) {
			v := &vault{values: map[string]string{"prod/pin": pinValue}}
			b := newBench(t, withVault(v))
			if !b.strict() {
				needs.Lacking(t, "no sandbox on this machine")
			}
			s := spec(step)
			s.Secrets = []job.SecretRef{{Name: "prod/pin", Env: "PIN"}}
			s.Outputs = []job.OutputDecl{{Path: "out"}}
			r, _, a := b.run(s)
			if r.Outcome != job.OutcomeFailed || r.Category != job.OutputInvalid || len(r.Outputs) != 0 {
				t.Fatalf("%+v\n%s", r, b.text(a))
			}
			if strings.Contains(r.Message+b.text(a), "hunter") {
				t.Errorf("the value is told: %q", r.Message)
			}
			if d := cas.Sum([]byte("a" + pinValue + "b")); b.store.Has(t.Context(), d) {
				t.Error("the value is in the store")
			}
		})
	}
}

// What a runner cannot give, or not safely, it refuses before any work (07§33).
func TestSecretsRefused(t *testing.T) {
	v := &vault{values: map[string]string{"KEY": keyValue, "prod/pin": pinValue}}
	none := func(*Config) {}
	shared := func(c *Config) { c.Executors[job.SandboxProcess] = together{c.Executors[job.SandboxProcess]} }
	own := func(c *Config) { c.Executors[job.SandboxProcess] = apart{c.Executors[job.SandboxProcess]} }
	process := func(s *job.Spec) { s.Sandbox = job.SandboxProcess }
	for name, c := range map[string]struct {
		cfg    func(*Config)
		change func(*job.Spec)
		words  string
	}{
		"no provider":                         {func(c *Config) { withVault(v)(c); c.Secrets = nil }, func(*job.Spec) {}, "no provider"},
		"no such":                             {withVault(v), func(s *job.Spec) { s.Secrets[0].Name = "other" }, `no secret "other"`},
		"as a file where there is no sandbox": {own, process, "needs a strict sandbox"},
		"beside jobs of the same user":        {shared, func(*job.Spec) {}, "share a user"},
		"as such a job":                       {shared, func(s *job.Spec) { process(s); s.Secrets = s.Secrets[:1] }, "share a user"},
		"given: in a sandbox":                 {withVault(v), func(*job.Spec) {}, ""},
		"given: beside jobs of other users":   {own, func(*job.Spec) {}, ""},
		"given: a variable to a user":         {own, func(s *job.Spec) { process(s); s.Secrets = s.Secrets[:1] }, ""},
		"given: none to who asks for none":    {none, func(s *job.Spec) { s.Secrets = nil }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, func(c *Config) { c.Secrets = v }, c.cfg)
			s := secretSpec("true")
			c.change(&s)
			err := b.r.Check(s, 0)
			if (c.words == "") != (err == nil) || err != nil && (forgeyard.KindOf(err) != forgeyard.Denied || !strings.Contains(err.Error(), c.words)) {
				t.Errorf("%v", err)
			}
		})
	}
}

// A hole of a terabyte is within the quota of a job. It is refused before it is read, and what
// is read ends with the attempt.
func TestSecretInAHole(t *testing.T) {
	dir := t.TempDir()
	f, err := os.Create(filepath.Join(dir, "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(1 << 40); err != nil {
		needs.Lacking(t, "this file system has no files with holes: %v", err)
	}
	a := &Attempt{secrets: []secret{{}}, redact: redact.New(redact.Value{Name: "PIN", Bytes: []byte(pinValue)})}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := a.noSecretIn(ctx, dir, []string{"out"}); forgeyard.KindOf(err) != forgeyard.Interrupted || ctx.Err() == nil {
		t.Errorf("%v", err)
	}
	a.task.Spec.Resources.Disk = 1 << 20
	err = a.noSecretIn(t.Context(), dir, []string{"out"})
	if forgeyard.KindOf(err) != forgeyard.Limit || !strings.Contains(err.Error(), "output out has 1099511627776 bytes, the bound is 1048576") || !outputIsWrong(err) {
		t.Errorf("%v", err)
	}
}
