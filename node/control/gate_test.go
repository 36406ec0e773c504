package control

import (
	"context"
	"net/http/httptest"
	"slices"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/api/wire"
)

// shown and withheld are every procedure of the control API. One that is new stands in
// neither until somebody has thought about whether any process of the machine may call it.
// To hand out content is no change, and withheld all the same: outputs and logs of content
// belong to the account.
var (
	shown = []string{
		"NodeService/Status", "NodeService/Doctor",
		"SiteService/Status", "SiteService/Members", "SiteService/Events", "SiteService/ListTokens", "SiteService/GetConfig",
		"JobService/List", "JobService/ListLeases", "JobService/Show", "JobService/Log",
		"CheckpointService/List", "CheckpointService/Show", "CheckpointService/Doctor",
		"RunService/List", "RunService/Show", "RunService/Attach",
		"ContentService/Stat", "ContentService/Usage", "ContentService/ListNames", "SiteService/ListSecrets",
		"DeviceService/List",
		"UplinkService/Status",
	}
	withheld = []string{
		"NodeService/Drain", "NodeService/Resume", "NodeService/Cleanup",
		"SiteService/CreateToken", "SiteService/RevokeToken", "SiteService/SetSecret", "SiteService/RemoveSecret", "SiteService/SetConfig", "SiteService/SetMember",
		"SiteService/Backup", "SiteService/Recover",
		"JobService/Submit", "JobService/Cancel", "JobService/Ask", "JobService/Resume", "JobService/ResolveEffect", "JobService/RevokeLease", "JobService/Provenance", "JobService/JudgeProvenance",
		"CheckpointService/Revoke", "CheckpointService/Delete", "CheckpointService/Open",
		"RunService/Suspend", "RunService/Resume",
		"ContentService/Put", "ContentService/PutBlocks", "ContentService/Missing", "ContentService/Get", "ContentService/Pin", "ContentService/Unpin", "ContentService/GC", "ContentService/Verify", "ContentService/RemoveName",
		"OwnWorkService/Task", "OwnWorkService/Report", "OwnWorkService/Verify", "OwnWorkService/Garden",
		"BundleService/Export", "BundleService/Import", "BundleService/Judge",
		"DeviceService/Lease", "DeviceService/Release", "DeviceService/SetHealth", "DeviceService/Console",
		"UplinkService/Connect", "UplinkService/Disconnect", "UplinkService/Drill",
	}
)

// eachProcedure yields the procedures that the descriptors know.
func eachProcedure(f func(name, procedure string, m protoreflect.MethodDescriptor)) {
	all := forgeyardv1.File_forgeyard_v1_node_proto.Services()
	for i := range all.Len() {
		s := all.Get(i)
		for k := range s.Methods().Len() {
			m := s.Methods().Get(k)
			f(string(s.Name())+"/"+string(m.Name()), "/"+string(s.FullName())+"/"+string(m.Name()), m)
		}
	}
}

// Decision 7: an address that only shows changes nothing, whatever is added to the API.
func TestGateKnowsEveryProcedure(t *testing.T) {
	known := map[string]bool{}
	eachProcedure(func(name, procedure string, _ protoreflect.MethodDescriptor) {
		known[name] = true
		show, hold := slices.Contains(shown, name), slices.Contains(withheld, name)
		if show == hold {
			t.Errorf("%s stands in %v lists: is it one that any process of the machine may call?", name, show)
		}
		err := gate{ReadOnly}.check(procedure)
		if (err == nil) != show || (err != nil && forgeyard.KindOf(wire.FromConnect(err)) != forgeyard.Denied) {
			t.Errorf("%s over an address that only shows: %v", name, err)
		}
		if err := (gate{Full}).check(procedure); err != nil {
			t.Errorf("%s over the socket: %v", name, err)
		}
	})
	for _, name := range append(slices.Clone(shown), withheld...) {
		if !known[name] {
			t.Errorf("%s is not in the API", name)
		}
	}
}

// TestReadOnlyHandlerRefuses calls each of the withheld over real HTTP. There is no node
// behind the handler, so what gets past the gate crashes.
func TestReadOnlyHandlerRefuses(t *testing.T) {
	srv := httptest.NewUnstartedServer(Handler(nil, ReadOnly))
	srv.EnableHTTP2 = true
	srv.StartTLS()
	defer srv.Close()
	eachProcedure(func(name, procedure string, m protoreflect.MethodDescriptor) {
		if !slices.Contains(withheld, name) {
			return
		}
		c := connect.NewClient[emptypb.Empty, emptypb.Empty](srv.Client(), srv.URL+procedure, connect.WithInterceptors(wire.Interceptor{}))
		err := call(t.Context(), c, m)
		if forgeyard.KindOf(err) != forgeyard.Denied {
			t.Errorf("%s: %v", name, err)
		}
	})
}

func call(ctx context.Context, c *connect.Client[emptypb.Empty, emptypb.Empty], m protoreflect.MethodDescriptor) error {
	switch {
	case m.IsStreamingClient() && m.IsStreamingServer():
		s := c.CallBidiStream(ctx)
		defer s.CloseResponse()
		if err := s.CloseRequest(); err != nil {
			return err
		}
		_, err := s.Receive()
		return err
	case m.IsStreamingClient():
		_, err := c.CallClientStream(ctx).CloseAndReceive()
		return err
	case m.IsStreamingServer():
		s, err := c.CallServerStream(ctx, connect.NewRequest(&emptypb.Empty{}))
		if err != nil {
			return err
		}
		defer s.Close()
		for s.Receive() {
		}
		return s.Err()
	}
	_, err := c.CallUnary(ctx, connect.NewRequest(&emptypb.Empty{}))
	return err
}
