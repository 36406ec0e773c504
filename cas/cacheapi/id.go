package cacheapi

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
)

// Function is a hash function that clients name bytes by.
type Function uint8

// Functions. Zero is none.
const (
	SHA256 Function = 1
	BLAKE3 Function = 2
)

func (f Function) String() string {
	switch f {
	case SHA256:
		return "sha256"
	case BLAKE3:
		return "blake3"
	}
	return "no hash function"
}

// ID is what a client calls some bytes: a hash and a size.
type ID struct {
	Func Function
	Hash [32]byte
	Size int64 // bytes
}

func (id ID) String() string {
	return fmt.Sprintf("%v %s/%d", id.Func, hex.EncodeToString(id.Hash[:]), id.Size)
}

var (
	emptySHA256 = sha256.Sum256(nil)
	emptyBLAKE3 = [32]byte(cas.Empty())
)

// Empty reports whether the name is that of no bytes, which are always here.
func (id ID) Empty() bool {
	return id.Size == 0 && (id.Func == SHA256 && id.Hash == emptySHA256 || id.Func == BLAKE3 && id.Hash == emptyBLAKE3)
}

// ParseHash reads 64 lower-case hex digits.
func ParseHash(s string) ([32]byte, error) {
	var h [32]byte
	if len(s) != 64 || strings.ToLower(s) != s {
		return h, badHash(s)
	}
	if _, err := hex.Decode(h[:], []byte(s)); err != nil {
		return h, badHash(s)
	}
	return h, nil
}

func badHash(s string) error {
	return forgeyard.Errorf("digest", forgeyard.Invalid, "hash %q has %d characters: 64 lower-case hex digits are expected, of SHA-256 or BLAKE3", forgeyard.Clip(s, 80), len(s))
}

// ParseID makes an ID of a client's words and refuses what cannot be one.
func ParseID(f Function, hash string, size int64) (ID, error) {
	h, err := ParseHash(hash)
	if err != nil {
		return ID{}, err
	}
	id := ID{Func: f, Hash: h, Size: size}
	return id, id.check()
}

func (id ID) check() error {
	switch {
	case id.Func != SHA256 && id.Func != BLAKE3:
		return forgeyard.Errorf("digest", forgeyard.Invalid, "%v: SHA256 and BLAKE3 are spoken here", id.Func)
	case id.Size < 0 || id.Size > cas.MaxBlobSize:
		return forgeyard.Errorf("digest", forgeyard.Invalid, "size %d is not in [0, %d]", id.Size, int64(cas.MaxBlobSize))
	case (id.Size == 0) != (id.Hash == emptySHA256 && id.Func == SHA256 || id.Hash == emptyBLAKE3 && id.Func == BLAKE3):
		return forgeyard.Errorf("digest", forgeyard.Invalid, "%v: the hash of no bytes and size 0 belong together", id)
	}
	return nil
}

// Resource is a resource name of the ByteStream service, taken apart.
type Resource struct {
	Instance string
	Upload   string // the client's id of an upload; empty in a name to read from
	Zstd     bool   // the bytes travel compressed; the ID is that of the plain ones
	ID       ID
}

// keywords end the instance name.
var keywords = map[string]bool{
	"blobs": true, "uploads": true, "actions": true, "actionResults": true, "operations": true, "capabilities": true, "compressed-blobs": true,
}

// ParseResource reads
//
//	[INSTANCE/]blobs/[blake3/]HASH/SIZE
//	[INSTANCE/]uploads/UUID/blobs/[blake3/]HASH/SIZE[/anything]
//
// and the same with compressed-blobs/zstd in place of blobs.
func ParseResource(name string) (Resource, error) {
	if len(name) > MaxName {
		return Resource{}, forgeyard.Errorf("resource name", forgeyard.Invalid, "%d characters are more than %d", len(name), MaxName)
	}
	parts := strings.Split(name, "/")
	at := 0
	for at < len(parts) && !keywords[parts[at]] {
		at++
	}
	r := Resource{Instance: strings.Join(parts[:at], "/")}
	if err := CheckInstance(r.Instance); err != nil || at > 0 && r.Instance == "" {
		return Resource{}, badResource(name)
	}
	rest := parts[at:]
	if len(rest) > 2 && rest[0] == "uploads" && rest[1] != "" {
		r.Upload, rest = rest[1], rest[2:]
	}
	if len(rest) > 1 && rest[0] == "compressed-blobs" {
		if rest[1] != "zstd" {
			return Resource{}, forgeyard.Errorf("resource name", forgeyard.Invalid, "compressor %q: zstd is spoken here, as the capabilities say", forgeyard.Clip(rest[1], 40))
		}
		r.Zstd, rest = true, append([]string{"blobs"}, rest[2:]...)
	}
	if len(rest) < 3 || rest[0] != "blobs" {
		return Resource{}, badResource(name)
	}
	rest = rest[1:]
	f := SHA256
	if rest[0] == "blake3" {
		f, rest = BLAKE3, rest[1:]
	}
	if len(rest) < 2 || len(rest) > 2 && r.Upload == "" {
		return Resource{}, badResource(name)
	}
	size, err := strconv.ParseInt(rest[1], 10, 64)
	if err != nil || strconv.FormatInt(size, 10) != rest[1] {
		return Resource{}, badResource(name)
	}
	if r.ID, err = ParseID(f, rest[0], size); err != nil {
		return Resource{}, err
	}
	return r, nil
}

func badResource(name string) error {
	return forgeyard.Errorf("resource name", forgeyard.Invalid, "%q is not [INSTANCE/][uploads/UUID/]blobs/[blake3/]HASH/SIZE, nor compressed-blobs/zstd for blobs", forgeyard.Clip(name, 160))
}

// CheckInstance bounds the name of an instance. Instances share content, and nothing else.
func CheckInstance(s string) error {
	if len(s) > 256 {
		return forgeyard.Errorf("instance name", forgeyard.Invalid, "%d characters are more than 256", len(s))
	}
	if s == "" {
		return nil
	}
	for p := range strings.SplitSeq(s, "/") {
		if p == "" || p == "." || p == ".." || keywords[p] || strings.ContainsFunc(p, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			return forgeyard.Errorf("instance name", forgeyard.Invalid, "%q has a part that cannot stand in a resource name", forgeyard.Clip(s, 80))
		}
	}
	return nil
}

// Key makes the name of a result or a value out of all that tells it from others.
func Key(space cas.Space, parts ...string) cas.Name {
	h := cas.NewHasher()
	for _, p := range parts {
		fmt.Fprintf(h, "%d:%s,", len(p), p)
	}
	return cas.Name{Space: space, Key: h.Sum()}
}

// ActionKey names the result of an action.
func ActionKey(instance string, action ID) cas.Name {
	return Key(cas.SpaceAction, instance, action.Func.String(), hex.EncodeToString(action.Hash[:]), strconv.FormatInt(action.Size, 10))
}

// ValueKey names a client's own value: a path below an instance.
func ValueKey(instance, path string) cas.Name { return Key(cas.SpacePlain, instance, path) }
