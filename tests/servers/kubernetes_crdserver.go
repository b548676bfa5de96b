// crdserver: the real k8s.io/apiextensions-apiserver with no core API server behind it: it validates and stores custom
// resources, and nothing reconciles. The Debian packages it is made of:
//
// golang-cel-cel-go-dev golang-cel-expr-dev golang-etcd-server-dev golang-github-antlr4-go-antlr-dev
// golang-github-beorn7-perks-dev golang-github-blang-semver-dev golang-github-cenkalti-backoff-v5-dev
// golang-github-cespare-xxhash-v2-dev golang-github-coreos-go-semver-dev golang-github-coreos-go-systemd-dev
// golang-github-davecgh-go-spew-dev golang-github-docker-spdystream-dev golang-github-emicklei-go-restful-dev
// golang-github-evanphx-json-patch-dev golang-github-felixge-httpsnoop-dev golang-github-fsnotify-fsnotify-dev
// golang-github-fxamacker-cbor-dev golang-github-go-logr-logr-dev golang-github-go-logr-stdr-dev
// golang-github-go-openapi-jsonpointer-dev golang-github-go-openapi-jsonreference-dev
// golang-github-go-openapi-swag-dev golang-github-gogo-protobuf-dev golang-github-golang-protobuf-1-5-dev
// golang-github-google-gnostic-models-dev golang-github-google-uuid-dev golang-github-gorilla-websocket-dev
// golang-github-grpc-ecosystem-go-grpc-middleware-dev golang-github-grpc-ecosystem-grpc-gateway-dev
// golang-github-json-iterator-go-dev golang-github-kylelemons-godebug-dev golang-github-modern-go-concurrent-dev
// golang-github-modern-go-reflect2-dev golang-github-munnerz-goautoneg-dev golang-github-mxk-go-flowrate-dev
// golang-github-nytimes-gziphandler-dev golang-github-pkg-errors-dev golang-github-pmezard-go-difflib-dev
// golang-github-prometheus-client-golang-dev golang-github-prometheus-client-model-dev
// golang-github-prometheus-common-dev golang-github-prometheus-procfs-dev golang-github-spf13-cobra-dev
// golang-github-spf13-pflag-dev golang-github-x448-float16-dev golang-go.uber-multierr-dev golang-go.uber-zap-dev
// golang-golang-x-crypto-dev golang-golang-x-exp-dev golang-golang-x-net-dev golang-golang-x-oauth2-dev
// golang-golang-x-sync-dev golang-golang-x-sys-dev golang-golang-x-term-dev golang-golang-x-text-dev
// golang-golang-x-time-dev golang-google-genproto-dev golang-google-grpc-dev golang-google-protobuf-dev
// golang-gopkg-inf.v0-dev golang-gopkg-natefinch-lumberjack.v2-dev golang-gopkg-yaml.v2-dev golang-gopkg-yaml.v3-dev
// golang-k8s-api-dev golang-k8s-apiextensions-apiserver-dev golang-k8s-apimachinery-dev golang-k8s-apiserver-dev
// golang-k8s-client-go-dev golang-k8s-component-base-dev golang-k8s-klog-dev golang-k8s-kms-dev
// golang-k8s-kube-openapi-dev golang-k8s-sigs-apiserver-network-proxy-dev golang-k8s-sigs-json-dev
// golang-k8s-sigs-randfill-dev golang-k8s-sigs-structured-merge-diff-v6-dev golang-k8s-sigs-yaml-dev
// golang-k8s-streaming-dev golang-k8s-utils-dev golang-opentelemetry-contrib-dev golang-opentelemetry-otel-dev
// golang-opentelemetry-proto-dev

package main

import (
	"errors"
	"flag"
	"net"
	"net/url"
	"os"

	"go.opentelemetry.io/otel/trace/noop"
	"k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apiextensions-apiserver/pkg/cmd/server/options"
	generatedopenapi "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/util/openapi"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/kubernetes/scheme"
)

type noServices struct{}

func (noServices) ResolveEndpoint(ns, name string, port int32) (*url.URL, error) {
	return nil, errors.New("no services here")
}

func must(err error) {
	if err != nil {
		println(err.Error())
		os.Exit(1)
	}
}

func main() {
	etcd := flag.String("etcd", "http://127.0.0.1:2379", "")
	port := flag.Int("port", 6443, "")
	certs := flag.String("cert-dir", "certs", "")
	flag.Parse()
	o := options.NewCustomResourceDefinitionsServerOptions(os.Stdout, os.Stderr)
	r := o.RecommendedOptions
	r.CoreAPI, r.Admission, r.Authentication, r.Authorization = nil, nil, nil, nil
	r.Features.EnablePriorityAndFairness = false
	r.Etcd.StorageConfig.Transport.ServerList = []string{*etcd}
	r.SecureServing.BindAddress = net.ParseIP("127.0.0.1")
	r.SecureServing.BindPort = *port
	r.SecureServing.ServerCert.CertDirectory = *certs
	must(o.Complete())
	must(r.SecureServing.MaybeDefaultWithSelfSignedCerts("localhost", nil, []net.IP{net.ParseIP("127.0.0.1")}))
	c := genericapiserver.NewRecommendedConfig(apiserver.Codecs)
	must(o.ServerRunOptions.ApplyTo(&c.Config))
	must(r.ApplyTo(c))
	must(o.APIEnablement.ApplyTo(&c.Config, apiserver.DefaultAPIResourceConfigSource(), apiserver.Scheme))
	defs := openapi.GetOpenAPIDefinitionsWithoutDisabledFeatures(generatedopenapi.GetOpenAPIDefinitions)
	namer := openapinamer.NewDefinitionNamer(apiserver.Scheme, scheme.Scheme)
	c.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(defs, namer)
	c.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(defs, namer)
	cfg := &apiserver.Config{GenericConfig: c, ExtraConfig: apiserver.ExtraConfig{
		CRDRESTOptionsGetter: options.NewCRDRESTOptionsGetter(*r.Etcd, c.ResourceTransformers, c.StorageObjectCountTracker),
		ServiceResolver:	  noServices{},
		AuthResolverWrapper:  webhook.NewDefaultAuthenticationInfoResolverWrapper(nil, nil, c.LoopbackClientConfig, noop.NewTracerProvider()),
	}}
	cc := cfg.Complete()
	cc.GenericConfig.EnableDiscovery = true
	s, err := cc.New(genericapiserver.NewEmptyDelegate())
	must(err)
	must(s.GenericAPIServer.PrepareRun().RunWithContext(genericapiserver.SetupSignalContext()))
}
