package runner

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/executor"
	"github.com/forgeyard/forgeyard-node/node/runner/redact"
	"github.com/forgeyard/forgeyard-node/node/runner/spool"
)

// SecretsDir is where a sandbox has secrets as files, in memory.
const SecretsDir = "secrets"

// Secrets gives values of secrets; node/secrets has providers.
type Secrets interface {
	// Has says why a value cannot be had here, or nil.
	Has(name string) error
	// Resolve gives it; whoever asked clears it.
	Resolve(ctx context.Context, name string) ([]byte, error)
}

// secret is one of the spec, resolved. Its life: resolved as the last thing of the
// preparation, given to each step, cleared when the tree is dead (07§61).
type secret struct {
	ref   job.SecretRef
	value []byte
}

// mayHave says why a job cannot have the secrets that it asks for here, or nil.
func (r *Runner) mayHave(s job.Spec) error {
	if len(s.Secrets) == 0 {
		return nil
	}
	if r.cfg.Secrets == nil {
		return forgeyard.Errorf("secrets", forgeyard.Denied, "%d are asked for, and this runner has no provider of secrets", len(s.Secrets))
	}
	// As one user, a job in no sandbox reads the memory of every other, sandboxed or not.
	if p, ok := r.cfg.Executors[job.SandboxProcess]; ok && p.Kind() == job.SandboxProcess && !p.Users().Apart() {
		return forgeyard.Errorf("secrets", forgeyard.Denied, "jobs of the process executor share a user here, and could read them").
			WithHint("give each attempt a user of its own (node.yaml: users, no process.uid, a root daemon), or take process out of executors")
	}
	for _, ref := range s.Secrets {
		if ref.File != "" && s.Sandbox != job.SandboxStrict {
			return forgeyard.Errorf("secrets", forgeyard.Denied, "secret %q as a file needs a strict sandbox: elsewhere it would be on a disk", ref.Name)
		}
		if err := r.cfg.Secrets.Has(ref.Name); err != nil {
			return forgeyard.E("secrets", forgeyard.Denied, err)
		}
	}
	return nil
}

// resolve gets the values, as late as possible (07§60).
func (a *Attempt) resolve(ctx context.Context) error {
	if err := a.run.mayHave(a.task.Spec); err != nil || len(a.task.Spec.Secrets) == 0 {
		return err
	}
	var known []redact.Value
	for _, ref := range a.task.Spec.Secrets {
		b, err := a.run.cfg.Secrets.Resolve(ctx, ref.Name)
		if err != nil {
			return forgeyard.E("secrets", forgeyard.Denied, err)
		}
		a.secrets = append(a.secrets, secret{ref: ref, value: b})
		known = append(known, redact.Value{Name: ref.Name, Bytes: b})
		if ref.Env != "" && bytes.IndexByte(b, 0) >= 0 {
			return forgeyard.Errorf("secrets", forgeyard.Denied, "secret %q holds a zero byte, which no variable can; ask for it as a file", ref.Name)
		}
	}
	set := redact.New(known...)
	a.mu.Lock()
	a.redact = set
	a.mu.Unlock()
	return nil
}

// forgetSecrets clears the values. The strings of a step's environment cannot be cleared:
// they go with the next collection of this process's memory.
func (a *Attempt) forgetSecrets() {
	for _, s := range a.secrets {
		clear(s.value)
	}
	a.secrets = nil
	a.mu.Lock()
	set := a.redact
	a.redact = nil
	a.mu.Unlock()
	if set != nil {
		set.Wipe()
	}
}

// secretEnv puts secrets into an environment, in the place of what else has their names. A
// line end that a file of a secret often has is left out.
func (a *Attempt) secretEnv(env []string) []string {
	for _, s := range a.secrets {
		if s.ref.Env == "" {
			continue
		}
		at := s.ref.Env + "="
		kept := env[:0]
		for _, e := range env {
			if !strings.HasPrefix(e, at) {
				kept = append(kept, e)
			}
		}
		env = append(kept, at+string(bytes.TrimRight(s.value, "\r\n")))
	}
	if len(a.secretFiles()) > 0 {
		env = append(env, "FORGEYARD_SECRETS_DIR="+path.Join(a.view, SecretsDir))
	}
	return env
}

// secretFiles are the secrets that a step sees as files.
func (a *Attempt) secretFiles() (out []executor.File) {
	for _, s := range a.secrets {
		if s.ref.File != "" {
			out = append(out, executor.File{Inside: path.Join(a.view, SecretsDir, s.ref.File), Bytes: s.value})
		}
	}
	return out
}

// secretValues are what no checkpoint may hold.
func (a *Attempt) secretValues() (out [][]byte) {
	for _, s := range a.secrets {
		out = append(out, s.value)
	}
	return out
}

// stream is where the output of a step goes: into the log, without values of secrets (RA-248).
func (a *Attempt) stream(to spool.Stream, step int) io.Writer {
	w := a.log.Writer(a.ctx, to, uint16(step))
	if a.redact.IsZero() {
		return w
	}
	r := redact.NewWriter(w, a.redact)
	a.streams = append(a.streams, r)
	return r
}

// endStreams lets through what waited for more that does not come.
func (a *Attempt) endStreams() {
	for _, w := range a.streams {
		if err := w.Flush(); err != nil {
			a.said().Warn("the end of an output is lost", "err", err)
		}
	}
	a.streams = nil
}

// clean takes the values of secrets out of a text of ours: an error can quote what a program
// or a path says.
func (a *Attempt) clean(text string) string {
	a.mu.Lock()
	set := a.redact
	a.mu.Unlock()
	if set == nil {
		return text
	}
	return set.Text(text)
}

// noSecretIn refuses outputs in which a value stands: what is stored is content that many
// may read (07§60). It ends with ctx: what a workload left can take hours to read.
func (a *Attempt) noSecretIn(ctx context.Context, build string, paths []string) error {
	if len(a.secrets) == 0 {
		return nil
	}
	root, err := os.OpenRoot(build)
	if err != nil {
		return forgeyard.E("outputs", forgeyard.Other, err)
	}
	defer root.Close()
	for _, p := range paths {
		err := fs.WalkDir(root.FS(), path.Clean(filepath.ToSlash(p)), func(at string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			return a.noSecretAt(ctx, root, at, d)
		})
		if errors.Is(err, fs.ErrNotExist) {
			continue // the capture says so
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (a *Attempt) noSecretAt(ctx context.Context, root *os.Root, at string, d fs.DirEntry) error {
	if err := ctx.Err(); err != nil {
		return forgeyard.E("outputs", forgeyard.Interrupted, err)
	}
	if at != a.clean(at) {
		return forgeyard.Errorf("outputs", forgeyard.Invalid, "the name of an output holds the value of a secret")
	}
	if !d.Type().IsRegular() {
		return nil
	}
	f, err := root.Open(at)
	if err != nil {
		return forgeyard.E("outputs", forgeyard.Other, err)
	}
	defer f.Close()
	if err := a.fits(at, f); err != nil {
		return err
	}
	name, err := a.redact.In(until{ctx, f})
	switch {
	case ctx.Err() != nil:
		return forgeyard.E("outputs", forgeyard.Interrupted, ctx.Err())
	case err != nil:
		return forgeyard.E("outputs", forgeyard.Other, err)
	case name != "":
		return forgeyard.Errorf("outputs", forgeyard.Invalid, "output %s holds the value of secret %q", at, name).WithHint("what is stored can be read by the whole site; write it without")
	}
	return nil
}

// fits refuses a file that the capture would refuse, before it is read: holes take nothing of
// the disk, so one of any length is within the quota.
func (a *Attempt) fits(at string, f *os.File) error {
	st, err := f.Stat()
	if err != nil {
		return forgeyard.E("outputs", forgeyard.Other, err)
	}
	if most := a.task.Spec.Resources.Disk; most > 0 && st.Size() > most {
		return forgeyard.Errorf("outputs", forgeyard.Limit, "output %s has %d bytes, the bound is %d", at, st.Size(), most).WithHint("ask for more under resources.disk, or make less")
	}
	return nil
}

// until is a reader that ends with its context.
type until struct {
	ctx context.Context
	r   io.Reader
}

func (u until) Read(b []byte) (int, error) {
	if err := u.ctx.Err(); err != nil {
		return 0, err
	}
	return u.r.Read(b)
}
