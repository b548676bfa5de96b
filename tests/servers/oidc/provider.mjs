// The OpenID Connect provider the tests sign in with. Its options come as JSON in OIDC_OPTIONS (see __init__.py).
// It is read from standard input with the installed packages' folder as the working directory.

import { generateKeyPairSync, randomBytes } from 'node:crypto';

import Provider from 'oidc-provider';

const options = JSON.parse(process.env.OIDC_OPTIONS);

// New keys at each start, so that a restart is a key rotation.
function signingKey() {
  const { privateKey } = generateKeyPairSync('rsa', { modulusLength: 2048 });
  const kid = randomBytes(8).toString('hex');
  return { ...privateKey.export({ format: 'jwk' }), kid, use: 'sig', alg: 'RS256' };
}

function person(sub) {
  return { email: `${sub}@${options.mailDomain}`, email_verified: true, groups: options.groups[sub] ?? [] };
}

const provider = new Provider(options.issuer, {
  jwks: { keys: [signingKey()] },
  cookies: { keys: [randomBytes(32).toString('hex')] },
  clients: [
    {
      client_id: options.publicClient,
      application_type: 'native',
      token_endpoint_auth_method: 'none',
      grant_types: ['authorization_code', 'refresh_token'],
      response_types: ['code'],
      redirect_uris: options.redirectUris,
    },
    {
      client_id: options.serviceClient,
      client_secret: options.serviceSecret,
      token_endpoint_auth_method: 'client_secret_basic',
      grant_types: ['client_credentials'],
      response_types: [],
      redirect_uris: [],
    },
  ],
  scopes: ['openid', 'offline_access'],
  claims: { openid: ['sub'], email: ['email', 'email_verified'], groups: ['groups'] },
  // Put the claims into the identity token, as most company providers are set to.
  conformIdTokenClaims: false,
  findAccount: (ctx, sub) => ({ accountId: sub, claims: () => ({ sub, ...person(sub) }) }),
  extraTokenClaims: (ctx, token) =>
    token.accountId ? person(token.accountId) : { groups: options.groups[token.clientId] ?? [] },
  pkce: { required: () => true },
  features: {
    devInteractions: { enabled: true },
    clientCredentials: { enabled: true },
    resourceIndicators: {
      enabled: true,
      defaultResource: () => options.audience,
      useGrantedResource: () => true,
      getResourceServerInfo: (ctx, resource) => ({
        scope: 'falaj',
        audience: resource,
        accessTokenTTL: options.tokenTtl,
        accessTokenFormat: 'jwt',
        jwt: { sign: { alg: 'RS256' } },
      }),
    },
  },
  ttl: {
    AccessToken: options.tokenTtl,
    AuthorizationCode: 60,
    ClientCredentials: options.tokenTtl,
    Grant: 3600,
    IdToken: options.tokenTtl,
    Interaction: 600,
    RefreshToken: 3600,
    Session: 3600,
  },
});

provider.listen(options.port, '127.0.0.1');
