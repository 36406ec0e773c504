package mesh

import (
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/forgeyard/forgeyard-node"
)

const (
	identityDir   = "identity"
	nodeKeyFile   = "node.key"
	nodeKeyPrefix = "fyk1_"
)

// Identity is a node's Ed25519 key. The peer id is its name on the wire (07§6).
type Identity struct {
	seed Secret
	id   peer.ID
}

// PeerID returns the name on the wire.
func (i Identity) PeerID() peer.ID { return i.id }

// IsZero reports whether there is no key.
func (i Identity) IsZero() bool { return i.seed.IsZero() }

func (i Identity) String() string               { return "identity " + i.id.String() }
func (i Identity) GoString() string             { return i.String() }
func (i Identity) Format(f fmt.State, _ rune)   { _, _ = f.Write([]byte(i.String())) }
func (i Identity) MarshalText() ([]byte, error) { return []byte(i.String()), nil }
func (i Identity) LogValue() slog.Value         { return slog.StringValue(i.String()) }

func (i Identity) key() (crypto.PrivKey, error) {
	return crypto.UnmarshalEd25519PrivateKey(ed25519.NewKeyFromSeed(i.seed.Reveal()))
}

// NewIdentity draws a key that is nowhere on disk.
func NewIdentity() (Identity, error) {
	seed := make([]byte, ed25519.SeedSize)
	if _, err := rand.Read(seed); err != nil {
		return Identity{}, forgeyard.E("identity", forgeyard.Other, err)
	}
	return identityFromSeed(seed)
}

func identityFromSeed(seed []byte) (Identity, error) {
	if len(seed) != ed25519.SeedSize {
		return Identity{}, forgeyard.Errorf("identity", forgeyard.Corrupt, "a node key has %d bytes, this one %d", ed25519.SeedSize, len(seed))
	}
	i := Identity{seed: NewSecret(seed)}
	k, err := i.key()
	if err != nil {
		return Identity{}, forgeyard.E("identity", forgeyard.Corrupt, err)
	}
	if i.id, err = peer.IDFromPrivateKey(k); err != nil {
		return Identity{}, forgeyard.E("identity", forgeyard.Corrupt, err)
	}
	return i, nil
}

// LoadOrCreateIdentity reads <dir>/identity/node.key, or draws a key and writes
// it, durably, before it returns. Two processes that race agree on one key. Errors: Corrupt if
// the file is damaged, Denied if others may read it, NoSpace if the disk is full.
func LoadOrCreateIdentity(dir string) (Identity, error) {
	path := filepath.Join(dir, identityDir, nodeKeyFile)
	if i, err := loadIdentity(path); !errors.Is(err, fs.ErrNotExist) {
		return i, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return Identity{}, diskError("identity", err)
	}
	i, err := NewIdentity()
	if err != nil {
		return Identity{}, err
	}
	err = writeDurably(path, []byte(armor(nodeKeyPrefix, i.seed.Reveal())+"\n"), true)
	if errors.Is(err, fs.ErrExist) {
		return loadIdentity(path)
	}
	if err != nil {
		return Identity{}, diskError("identity", err)
	}
	return i, nil
}

func loadIdentity(path string) (Identity, error) {
	b, err := readSecretFile(path)
	if err != nil {
		return Identity{}, err
	}
	seed, err := unarmor("identity "+path, nodeKeyPrefix, string(b))
	if err != nil {
		return Identity{}, forgeyard.E("", forgeyard.Corrupt, err).WithHint("restore the file from a backup, or remove the identity folder and join again as a new node")
	}
	return identityFromSeed(seed)
}
