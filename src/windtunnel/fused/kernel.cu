// A small recurrent network held by one block of threads: forward, backward through time, clipping and update without another launch.
//
// Compiled at run time with R, NI, NO (units, inputs, outputs), ACT (0 relu, 1 sigmoid, 2 tanh), LEAKY, CROSS (cross entropy) and
// MODE (0: train over many updates, 1: forward of a batch, 2: backward of a batch) set. In mode 0 a block is a network; in modes 1
// and 2 it is one example of one network.
//
// Four lanes share a unit. Each keeps a quarter of what the unit listens to (the states and inputs of the step before, in one row z)
// in registers, V; a quarter of what it speaks to, W; and the gradient of V. Shared memory holds the rows z of all timesteps. So a
// timestep is one row of products, two shuffles and one barrier, and nothing is read from far away.

#define LANES 4
#define ROWS ((R + 7) / 8 * 8)
#define THREADS (ROWS * LANES)
#define Z (R + NI)
#define ZP ((Z + 15) / 16 * 16)
#define RP ((R + 15) / 16 * 16)
#define WIDE (RP + 4)
#define KV (ZP / 16)
#define KW (RP / 16)
#define KO ((NO + LANES - 1) / LANES)
#define WARPS (THREADS / 32)
#define SLOTS (KV * 4 + KO + 2)
#define P_REC (NI * R)
#define P_BIAS (P_REC + R * R)
#define P_OUT (P_BIAS + R)
#define P_LAST (P_OUT + R * NO)
#define P_ALL (P_LAST + NO)

struct Own {  // what a thread holds of its network
    float4 v[KV], w[KW], dv[KV];
    float out[KO], dout[KO];
    float bias, dbias, last, dlast;
};

__device__ __forceinline__ float four(float sum) {  // the sum over the lanes of a unit, for all of them
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    return sum + __shfl_xor_sync(0xffffffffu, sum, 2);
}

__device__ __forceinline__ float activate(float a) {
#if ACT == 0
    return fmaxf(a, 0.0f);
#elif ACT == 1
    return 1.0f / (1.0f + __expf(-a));
#else
    return tanhf(a);
#endif
}

__device__ __forceinline__ float slope_of(float r) {  // of the activation, from its value
#if ACT == 0
    return r > 0.0f ? 1.0f : 0.0f;
#elif ACT == 1
    return r * (1.0f - r);
#else
    return 1.0f - r * r;
#endif
}

__device__ __forceinline__ void fetch(float* there, const float* here) {  // global to shared memory, beside other work
    unsigned address = (unsigned)__cvta_generic_to_shared(there);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(address), "l"(here));
}

__device__ __forceinline__ float& part(float4& four, int c) { return reinterpret_cast<float*>(&four)[c]; }

__device__ void load(Own& own, const float* p, int unit, int lane) {
    bool real = unit < R;
#pragma unroll
    for (int k = 0; k < KV; k++)
#pragma unroll
        for (int c = 0; c < 4; c++) {
            int j = k * 16 + lane * 4 + c;
            float value = 0.0f;
            if (real && j < R) value = p[P_REC + j * R + unit];
            else if (real && j < Z) value = p[(j - R) * R + unit];
            part(own.v[k], c) = value;
        }
#pragma unroll
    for (int k = 0; k < KW; k++)
#pragma unroll
        for (int c = 0; c < 4; c++) {
            int m = k * 16 + lane * 4 + c;
            part(own.w[k], c) = real && m < R ? p[P_REC + unit * R + m] : 0.0f;
        }
#pragma unroll
    for (int k = 0; k < KO; k++) {
        int o = k * LANES + lane;
        own.out[k] = real && o < NO ? p[P_OUT + unit * NO + o] : 0.0f;
    }
    own.bias = real ? p[P_BIAS + unit] : 0.0f;
    own.last = threadIdx.x < NO ? p[P_LAST + threadIdx.x] : 0.0f;
}

__device__ void store(float4 (&v)[KV], float (&out)[KO], float bias, float last, float* p, int unit, int lane) {
    if (unit < R) {
#pragma unroll
        for (int k = 0; k < KV; k++)
#pragma unroll
            for (int c = 0; c < 4; c++) {
                int j = k * 16 + lane * 4 + c;
                if (j < R) p[P_REC + j * R + unit] = part(v[k], c);
                else if (j < Z) p[(j - R) * R + unit] = part(v[k], c);
            }
#pragma unroll
        for (int k = 0; k < KO; k++)
            if (k * LANES + lane < NO) p[P_OUT + unit * NO + k * LANES + lane] = out[k];
        if (lane == 0) p[P_BIAS + unit] = bias;
    }
    if (threadIdx.x < NO) p[P_LAST + threadIdx.x] = last;
}

__device__ void clear(Own& own) {
#pragma unroll
    for (int k = 0; k < KV; k++) own.dv[k] = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int k = 0; k < KO; k++) own.dout[k] = 0.0f;
    own.dbias = own.dlast = 0.0f;
}

// States of all timesteps into the rows z; `rates` keeps the activation where leaking hides it in the state.
__device__ void go_forward(Own& own, float* z, float* rates, const float* noise, float leak, int n_steps, int unit, int lane) {
    float state = 0.0f;
    for (int t = 0; t < n_steps; t++) {
        const float4* row = reinterpret_cast<const float4*>(z + t * ZP);
        float heard = noise != nullptr && unit < R ? noise[t * R + unit] : 0.0f;
        float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int k = 0; k < KV; k++) {
            float4 here = row[k * 4 + lane];
            sum.x = fmaf(here.x, own.v[k].x, sum.x);
            sum.y = fmaf(here.y, own.v[k].y, sum.y);
            sum.z = fmaf(here.z, own.v[k].z, sum.z);
            sum.w = fmaf(here.w, own.v[k].w, sum.w);
        }
        float rate = activate(four((sum.x + sum.y) + (sum.z + sum.w)) + own.bias + heard);
#if LEAKY
        state = (1.0f - leak) * state + leak * rate;
        if (lane == 0) rates[t * ROWS + unit] = rate;
#else
        state = rate;
#endif
        if (lane == 0 && unit < R) z[(t + 1) * ZP + unit] = state;
        __syncthreads();
    }
}

// The outputs of all timesteps; each group of lanes takes every ROWS-th of them.
__device__ void read_out(const float* z, const float* turned, const float* last, float* outputs, int n_steps, int unit, int lane) {
    for (int place = unit; place < (n_steps * NO + ROWS - 1) / ROWS * ROWS; place += ROWS) {
        bool real = place < n_steps * NO;
        int t = real ? place / NO : 0, o = real ? place % NO : 0;
        const float4* row = reinterpret_cast<const float4*>(z + (t + 1) * ZP);
        const float4* weight = reinterpret_cast<const float4*>(turned + o * RP);
        float sum = 0.0f;
#pragma unroll
        for (int k = 0; k < KW; k++) {
            float4 a = row[k * 4 + lane], b = weight[k * 4 + lane];  // where a row's inputs begin, the weights are 0
            sum += a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
        }
        sum = four(sum);
        if (real && lane == 0) outputs[place] = sum + last[o];
    }
}

// From the slopes at the outputs to all gradients, last timestep first.
__device__ void go_back(
    Own& own, const float* z, const float* rates, const float* slopes, float* sent, float* kept, float leak, int n_steps, int unit, int lane) {
    float carried = 0.0f;
    for (int t = n_steps - 1; t >= 0; t--) {
        const float4* spoken = reinterpret_cast<const float4*>(sent + ((t + 1) & 1) * RP);
        float4 sum = make_float4(0, 0, 0, 0);
        float state = unit < R ? z[(t + 1) * ZP + unit] : 0.0f;
        if (t + 1 < n_steps) {
#pragma unroll
            for (int k = 0; k < KW; k++) {
                float4 here = spoken[k * 4 + lane];
                sum.x = fmaf(here.x, own.w[k].x, sum.x);
                sum.y = fmaf(here.y, own.w[k].y, sum.y);
                sum.z = fmaf(here.z, own.w[k].z, sum.z);
                sum.w = fmaf(here.w, own.w[k].w, sum.w);
            }
        }
#pragma unroll
        for (int k = 0; k < KO; k++) {
            int o = k * LANES + lane;
            float slope = o < NO ? slopes[t * NO + o] : 0.0f;
            sum.x = fmaf(slope, own.out[k], sum.x);
            own.dout[k] = fmaf(slope, state, own.dout[k]);
        }
        float wanted = four((sum.x + sum.y) + (sum.z + sum.w)) + carried;
#if LEAKY
        carried = (1.0f - leak) * wanted;
        float drive = unit < R ? leak * wanted * slope_of(rates[t * ROWS + unit]) : 0.0f;
#else
        float drive = unit < R ? wanted * slope_of(state) : 0.0f;
#endif
        if (lane == 0 && unit < R) {
            sent[(t & 1) * RP + unit] = drive;
            if (kept != nullptr) kept[t * R + unit] = drive;
        }
        const float4* row = reinterpret_cast<const float4*>(z + t * ZP);
#pragma unroll
        for (int k = 0; k < KV; k++) {
            float4 here = row[k * 4 + lane];
            own.dv[k].x = fmaf(here.x, drive, own.dv[k].x);
            own.dv[k].y = fmaf(here.y, drive, own.dv[k].y);
            own.dv[k].z = fmaf(here.z, drive, own.dv[k].z);
            own.dv[k].w = fmaf(here.w, drive, own.dv[k].w);
        }
        own.dbias += drive;
        __syncthreads();
    }
    if (threadIdx.x < NO)
        for (int t = 0; t < n_steps; t++) own.dlast += slopes[t * NO + threadIdx.x];
}

__device__ float over_block(float value, float* shelf) {  // the sum over all threads, for all of them
#pragma unroll
    for (int apart = 16; apart; apart /= 2) value += __shfl_xor_sync(0xffffffffu, value, apart);
    if (threadIdx.x % 32 == 0) shelf[threadIdx.x / 32] = value;
    __syncthreads();
    float sum = 0.0f;
#pragma unroll
    for (int warp = 0; warp < WARPS; warp++) sum += shelf[warp];
    __syncthreads();
    return sum;
}

__device__ void read_out_weights(Own& own, float* turned, float* last, int unit, int lane) {
#pragma unroll
    for (int k = 0; k < KO; k++)
        if (unit < R && k * LANES + lane < NO) turned[(k * LANES + lane) * RP + unit] = own.out[k];
    if (threadIdx.x < NO) last[threadIdx.x] = own.last;
}

#if MODE == 0

__device__ __forceinline__ float renewed(float value, float slope, float* state, const float* hyper, float first, float second) {
    // hyper: rate, momentum, beta1, beta2, eps, clip, leak, is Adam. `first` and `second` undo Adam's start from 0.
    if (hyper[7] > 0.0f) {
        float mean = hyper[2] * state[0] + (1.0f - hyper[2]) * slope;
        float square = hyper[3] * state[THREADS * SLOTS] + (1.0f - hyper[3]) * slope * slope;
        state[0] = mean;
        state[THREADS * SLOTS] = square;
        return value - hyper[0] * (mean * first) / (sqrtf(square * second) + hyper[4]);
    }
    if (hyper[1] > 0.0f) {
        slope += hyper[1] * state[0];
        state[0] = slope;
    }
    return value - hyper[0] * slope;
}

__device__ void update(Own& own, float* state, const float* hyper, float scale, int number, int unit, int lane, float* square) {
    float first = 1.0f, second = 1.0f;
    if (hyper[7] > 0.0f) {
        first = 1.0f / (1.0f - powf(hyper[2], (float)number));
        second = 1.0f / (1.0f - powf(hyper[3], (float)number));
    }
    float* mine = state + threadIdx.x;
#pragma unroll
    for (int k = 0; k < KV; k++)
#pragma unroll
        for (int c = 0; c < 4; c++) {
            int j = k * 16 + lane * 4 + c;
            float value = renewed(part(own.v[k], c), scale * part(own.dv[k], c), mine + (k * 4 + c) * THREADS, hyper, first, second);
            part(own.v[k], c) = value;
            if (unit < R && j < R) square[j * WIDE + unit] = value;
        }
#pragma unroll
    for (int k = 0; k < KO; k++) own.out[k] = renewed(own.out[k], scale * own.dout[k], mine + (KV * 4 + k) * THREADS, hyper, first, second);
    own.bias = renewed(own.bias, scale * own.dbias, mine + (KV * 4 + KO) * THREADS, hyper, first, second);
    own.last = renewed(own.last, scale * own.dlast, mine + (KV * 4 + KO + 1) * THREADS, hyper, first, second);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < KW; k++)
        if (unit < R) own.w[k] = *reinterpret_cast<const float4*>(square + unit * WIDE + k * 16 + lane * 4);
}

__device__ void fetch_example(float* inputs, float* targets, const float* all_inputs, const float* all_targets, int example, int n_steps) {
    for (int i = threadIdx.x; i < n_steps * NI; i += THREADS) fetch(inputs + i, all_inputs + (long long)example * n_steps * NI + i);
    int wide = CROSS ? 1 : NO;
    for (int i = threadIdx.x; i < n_steps * wide; i += THREADS) fetch(targets + i, all_targets + (long long)example * n_steps * wide + i);
    asm volatile("cp.async.commit_group;");
}

// Outputs become slopes in place; returns this thread's share of the loss.
__device__ float compare(float* outputs, const float* targets, const float* mask, float norm, int n_steps) {
    float loss = 0.0f;
#if CROSS
    for (int t = threadIdx.x; t < n_steps; t += THREADS) {
        float* row = outputs + t * NO;
        int wanted = (int)targets[t];
        float most = row[0], sum = 0.0f, weight = mask == nullptr ? norm : norm * mask[t];
        for (int o = 1; o < NO; o++) most = fmaxf(most, row[o]);
        for (int o = 0; o < NO; o++) sum += expf(row[o] - most);
        loss += weight * (logf(sum) + most - row[wanted]);
        for (int o = 0; o < NO; o++) row[o] = weight * (expf(row[o] - most) / sum - (o == wanted ? 1.0f : 0.0f));
    }
#else
    for (int i = threadIdx.x; i < n_steps * NO; i += THREADS) {
        float weight = mask == nullptr ? norm : norm * mask[i / NO];
        float apart = outputs[i] - targets[i];
        loss += weight * apart * apart;
        outputs[i] = 2.0f * weight * apart;
    }
#endif
    return loss;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
fused(float* weights, float* states, const float* hypers, const float* all_inputs, const float* all_targets, const float* masks, const int* orders,
      const float* norms, const float* noises, float* losses, int n_steps, int updates, int batch, int before, int examples, int has_mask, int has_noise,
      int shared_data) {
    extern __shared__ float4 memory[];
    float* z = reinterpret_cast<float*>(memory);
    float* square = z + (n_steps + 1) * ZP;
    float* turned = square + R * WIDE;
    float* sent = turned + NO * RP;
    float* rates = sent + 2 * RP;
    float* outputs = rates + (LEAKY ? n_steps * ROWS : 0);
    float* inputs = outputs + n_steps * NO;
    float* targets = inputs + 2 * n_steps * NI;
    float* shelf = targets + 2 * n_steps * NO;
    float* last = shelf + WARPS;
    float* hyper = last + NO;

    int net = blockIdx.x, unit = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    int data = shared_data ? 0 : net;
    weights += (long long)net * P_ALL;
    states += (long long)net * 2 * THREADS * SLOTS;
    all_inputs += (long long)data * examples * n_steps * NI;
    all_targets += (long long)data * examples * n_steps * (CROSS ? 1 : NO);
    const int* order = orders + (long long)net * updates * batch;
    if (threadIdx.x < 8) hyper[threadIdx.x] = hypers[net * 8 + threadIdx.x];
    for (int i = threadIdx.x; i < (n_steps + 1) * ZP; i += THREADS) z[i] = 0.0f;
    for (int i = threadIdx.x; i < R * WIDE; i += THREADS) square[i] = 0.0f;
    for (int i = threadIdx.x; i < NO * RP + 2 * RP; i += THREADS) turned[i] = 0.0f;
    Own own;
    load(own, weights, unit, lane);
    fetch_example(inputs, targets, all_inputs, all_targets, order[0], n_steps);
    __syncthreads();
    int side = 0;
    for (int number = 0; number < updates; number++) {
        float loss = 0.0f;
        clear(own);
        read_out_weights(own, turned, last, unit, lane);
        for (int member = 0; member < batch; member++, side ^= 1) {
            int place = number * batch + member, example = order[place];
            asm volatile("cp.async.wait_all;");
            __syncthreads();
            const float* here = inputs + side * n_steps * NI;
            for (int i = threadIdx.x; i < n_steps * NI; i += THREADS) z[i / NI * ZP + R + i % NI] = here[i];
            __syncthreads();
            if (place + 1 < updates * batch)
                fetch_example(inputs + (side ^ 1) * n_steps * NI, targets + (side ^ 1) * n_steps * NO, all_inputs, all_targets, order[place + 1], n_steps);
            const float* noise = has_noise ? noises + ((long long)net * updates * batch + place) * n_steps * R : nullptr;
            go_forward(own, z, rates, noise, hyper[6], n_steps, unit, lane);
            read_out(z, turned, last, outputs, n_steps, unit, lane);
            __syncthreads();
            const float* mask = has_mask ? masks + ((long long)data * examples + example) * n_steps : nullptr;
            loss += compare(outputs, targets + side * n_steps * NO, mask, norms[(long long)net * updates + number], n_steps);
            __syncthreads();
            go_back(own, z, rates, outputs, sent, nullptr, hyper[6], n_steps, unit, lane);
        }
        float squares = lane == 0 ? own.dbias * own.dbias : 0.0f;
        squares += own.dlast * own.dlast;
#pragma unroll
        for (int k = 0; k < KV; k++)
            squares += own.dv[k].x * own.dv[k].x + own.dv[k].y * own.dv[k].y + own.dv[k].z * own.dv[k].z + own.dv[k].w * own.dv[k].w;
#pragma unroll
        for (int k = 0; k < KO; k++) squares += own.dout[k] * own.dout[k];
        float length = sqrtf(over_block(squares, shelf));
        float scale = fminf(1.0f, hyper[5] / (length + 1e-6f));
        loss = over_block(loss, shelf);
        if (threadIdx.x == 0) losses[(long long)net * updates + number] = loss;
        update(own, states, hyper, scale, before + number + 1, unit, lane, square);
        __syncthreads();
    }
    store(own.v, own.out, own.bias, own.last, weights, unit, lane);
}

#else  // one example of a batch, for autograd

extern "C" __global__ void __launch_bounds__(THREADS, 1)
fused(const float* weights, const float* all_inputs, const float* noises, float* all_outputs, float* all_states, float* all_rates, const float* all_slopes,
      float* gradients, float* drives, int n_steps, int batch, int has_noise, float* spare) {
    extern __shared__ float4 memory[];
    float* z = reinterpret_cast<float*>(memory);
    float* turned = z + (n_steps + 1) * ZP;
    float* sent = turned + NO * RP;
    float* rates = sent + 2 * RP;
    float* outputs = rates + (LEAKY ? n_steps * ROWS : 0);
    float* last = outputs + n_steps * NO;

    int example = blockIdx.x, unit = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    for (int i = threadIdx.x; i < (n_steps + 1) * ZP; i += THREADS) z[i] = 0.0f;
    for (int i = threadIdx.x; i < NO * RP + 2 * RP; i += THREADS) turned[i] = 0.0f;
    Own own;
    load(own, weights, unit, lane);
    clear(own);
    __syncthreads();
    read_out_weights(own, turned, last, unit, lane);
    for (int i = threadIdx.x; i < n_steps * NI; i += THREADS) z[i / NI * ZP + R + i % NI] = all_inputs[((i / NI) * batch + example) * NI + i % NI];
    float* states = all_states + (long long)example * n_steps * R;
    float leak = weights[P_ALL];
#if MODE == 1
    __syncthreads();
    go_forward(own, z, rates, has_noise ? noises + (long long)example * n_steps * R : nullptr, leak, n_steps, unit, lane);
    read_out(z, turned, last, outputs, n_steps, unit, lane);
    for (int i = threadIdx.x; i < n_steps * R; i += THREADS) states[i] = z[(i / R + 1) * ZP + i % R];
    if (LEAKY)
        for (int i = threadIdx.x; i < n_steps * ROWS; i += THREADS) all_rates[(long long)example * n_steps * ROWS + i] = rates[i];
    __syncthreads();
    for (int i = threadIdx.x; i < n_steps * NO; i += THREADS) all_outputs[((i / NO) * batch + example) * NO + i % NO] = outputs[i];
#else
    for (int i = threadIdx.x; i < n_steps * R; i += THREADS) z[(i / R + 1) * ZP + i % R] = states[i];
    if (LEAKY)
        for (int i = threadIdx.x; i < n_steps * ROWS; i += THREADS) rates[i] = all_rates[(long long)example * n_steps * ROWS + i];
    for (int i = threadIdx.x; i < n_steps * NO; i += THREADS) outputs[i] = all_slopes[((i / NO) * batch + example) * NO + i % NO];
    __syncthreads();
    go_back(own, z, rates, outputs, sent, drives + (long long)example * n_steps * R, leak, n_steps, unit, lane);
    store(own.dv, own.dout, own.dbias, own.dlast, gradients + (long long)example * P_ALL, unit, lane);
#endif
}

#endif
