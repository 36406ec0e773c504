// Package secrets gives the values of secrets to attempts, at the last moment and to nobody
// else. A provider knows values by name; the first that knows a name gives its value.
//
// A value is in memory only while an attempt needs it. It is in no error and in no log line.
package secrets

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/forgeyard/forgeyard-node"
)

// MaxValue bounds one value: a pipe's buffer takes it, and a key with its chain is far less.
const MaxValue = 32 << 10

// Provider gives values by name. It is safe for concurrent use.
type Provider interface {
	// Has says why the value of a name cannot be had here, or nil. NotFound: this provider does
	// not know the name; another kind: it does, and that is all there is to it.
	Has(name string) error
	// Resolve gives the value; the caller clears it. Errors have the kinds of Has.
	Resolve(ctx context.Context, name string) ([]byte, error)
}

// Chain asks one provider after the other.
type Chain []Provider

// Has implements Provider.
func (c Chain) Has(name string) error {
	for _, p := range c {
		if err := p.Has(name); forgeyard.KindOf(err) != forgeyard.NotFound {
			return err
		}
	}
	return unknown(name)
}

// Resolve implements Provider.
func (c Chain) Resolve(ctx context.Context, name string) ([]byte, error) {
	for _, p := range c {
		b, err := p.Resolve(ctx, name)
		if forgeyard.KindOf(err) != forgeyard.NotFound {
			return b, err
		}
	}
	return nil, unknown(name)
}

func unknown(name string) error {
	return forgeyard.Errorf("secret", forgeyard.NotFound, "this node has no secret %q", name).
		WithHint("name its file in node.yaml under secrets, or: forgeyard-node secret set %s", name)
}

// Files are secrets that lie in files of this machine, by name. A file that others may read, or
// that is neither root's nor of the user who asks, is refused.
type Files map[string]string

var _ Provider = Files(nil)

// Has implements Provider.
func (f Files) Has(name string) error {
	file, err := f.open(name)
	if err != nil {
		return err
	}
	return file.Close()
}

// Resolve implements Provider.
func (f Files) Resolve(_ context.Context, name string) (b []byte, err error) {
	file, err := f.open(name)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	b, err = io.ReadAll(io.LimitReader(file, MaxValue+1))
	if err != nil {
		return nil, forgeyard.E("secret", forgeyard.Denied, fmt.Errorf("%q: %w", name, err))
	}
	if err := check(name, b); err != nil {
		clear(b)
		return nil, err
	}
	return b, nil
}

func (f Files) open(name string) (*os.File, error) {
	path, ok := f[name]
	if !ok {
		return nil, unknown(name)
	}
	st, err := os.Stat(path) // a pipe would be waited for, a device may do more than that
	if err != nil {
		return nil, forgeyard.E("secret", forgeyard.Denied, fmt.Errorf("%q: %w", name, err))
	}
	if err := private(name, path, st); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(path, os.O_RDONLY|noWait, 0)
	if err != nil {
		return nil, forgeyard.E("secret", forgeyard.Denied, fmt.Errorf("%q: %w", name, err))
	}
	if st, err = file.Stat(); err == nil { // of what was opened: it may be another by now
		err = private(name, path, st)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

func private(name, path string, st fs.FileInfo) error {
	owner, mine := ownerOf(st)
	switch {
	case !st.Mode().IsRegular():
		return forgeyard.Errorf("secret", forgeyard.Denied, "%q: %s is no plain file", name, path)
	case st.Mode().Perm()&0o077 != 0:
		return forgeyard.Errorf("secret", forgeyard.Denied, "%q: %s has mode %04o, others may read it", name, path, st.Mode().Perm()).WithHint("chmod 600 %s", path)
	case !mine:
		return forgeyard.Errorf("secret", forgeyard.Denied, "%q: %s is of user %d, who may change and read it", name, path, owner).WithHint("chown %d %s", os.Geteuid(), path)
	case st.Size() > MaxValue:
		return forgeyard.Errorf("secret", forgeyard.Denied, "%q: %s has %d bytes, the bound is %d", name, path, st.Size(), MaxValue)
	}
	return nil
}

func check(name string, b []byte) error {
	if len(b) == 0 || len(b) > MaxValue {
		return forgeyard.Errorf("secret", forgeyard.Denied, "the value of %q has %d bytes, not 1 to %d", name, len(b), MaxValue)
	}
	return nil
}
